-- Inserts a tick whose id, time and event sequence come from elsewhere, for example when a queue is
-- replicated. The queue must have external_ticker; ids must grow, and event sequences must not
-- decrease. The queue's row lock serializes concurrent calls, and the snapshot is taken under that
-- lock, so a tick with a higher id never has an older snapshot. In a stricter isolation level the
-- snapshot would be older than the lock, so that is refused.
-- locks: the queue's row, until commit. writes: tick, tick_request, the event sequence; notifies.
create or replace function pgque.ticker(
    i_queue_name text, i_tick_id bigint, i_orig_timestamp timestamptz, i_event_seq bigint)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_end    constant bigint := 4503599627370496;
    v_queue  pgque.queue;
    v_last   pgque.tick;
begin
    perform pgque.check_read_committed('an external tick');
    perform pgque.check_adopted();
    perform pgque.follow_timeline() where not pgque.is_timeline_followed();
    loop
        select q.* into v_queue
        from pgque.queue q
        where q.queue_name = i_queue_name
        for no key update;
        exit when found;
        perform pgque.find_queue(i_queue_name);
    end loop;
    if v_queue.queue_ticker_paused or not v_queue.queue_external_ticker then
        perform pgque.refuse_tick(v_queue);
    end if;

    select t.* into v_last  -- as find_newest_tick, in a third of its time
    from pgque.tick t
    where t.tick_queue = v_queue.queue_id
    order by t.tick_id desc
    limit 1;
    -- Higher numbers would leave none for the queue's own ticks and events, and collide with delayed_events.
    if (i_tick_id > v_last.tick_id and i_tick_id < c_end) is not true
       or (i_event_seq >= v_last.tick_event_seq and i_event_seq < c_end) is not true
       or i_orig_timestamp is null or not isfinite(i_orig_timestamp) then
        raise exception 'tick % of % with event sequence % does not fit queue "%"',
                        coalesce(i_tick_id::text, 'null'), coalesce(i_orig_timestamp::text, 'null'),
                        coalesce(i_event_seq::text, 'null'), i_queue_name
            using errcode = 'PQ005',
                  hint = format('The last tick is %s with event sequence %s: give a higher id, a '
                                'finite time and a sequence that is not lower, both below %s.',
                                v_last.tick_id, v_last.tick_event_seq, c_end);
    end if;

    insert into pgque.tick_log (
        tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, half)
    select v_queue.queue_id, i_tick_id, i_orig_timestamp, pgque.tick_snapshot(), i_event_seq, l.half
    from pgque.log l
    where l.log_name = 'tick';
    delete from pgque.tick_request r where r.queue_id = v_queue.queue_id;
    perform pgque.raise_event_ids(v_queue.queue_seq, i_event_seq);
    perform pg_notify(format('pgque_%s', i_queue_name), i_tick_id::text);
    return i_tick_id;
end;
$$;

-- Raises the error for a queue that accepts no tick from this ticker, with the setting that would
-- allow it.
create or replace function pgque.refuse_tick(i_queue pgque.queue)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_setting constant text := case when i_queue.queue_ticker_paused then 'ticker_paused'
                                    else 'external_ticker' end;
    v_value   constant boolean := i_queue.queue_ticker_paused or i_queue.queue_external_ticker;
begin
    raise exception 'ticks not allowed: % of queue "%" is %', v_setting, i_queue.queue_name,
                    v_value::text
        using errcode = 'PQ017',
              hint = format('Set it with: select pgque.set_queue_config(%L, %L, %L);',
                            i_queue.queue_name, v_setting, (not v_value)::text);
end;
$$;
