-- Where a consumer starts or continues: earliest (the oldest tick whose events all exist), latest
-- (the newest tick), a tick's number, or a time. A time means the newest tick before which all ticks
-- are older than the time. A tick sees no event that is committed at or after its own time, so every
-- event committed at or after the given time follows that tick, by the server's clock. Some events that
-- were committed shortly before follow it, too.

-- Refuses a text that is not such a position.
create or replace function pgque.check_position(i_position text)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_is_known boolean;
begin
    begin
        v_is_known := case
            when i_position in ('earliest', 'latest') then true
            when i_position ~ '^[0-9]+$' then i_position::bigint is not null
            else i_position::timestamptz <= clock_timestamp() end;
    exception
        when data_exception then
            v_is_known := false;
    end;
    if v_is_known is not true then
        perform pgque.refuse_value(
            '"%s" is not a position in a queue', i_position,
            'Pass earliest, latest, the number of a tick, or a time in the past, such as '
            '2026-05-24 18:00+00.');
    end if;
end;
$$;

-- Finds the tick of such a position, and keeps it and its events until commit. Refuses a position that
-- is no longer retained.
-- locks: tick, against compaction, and the queue's row, against rotation, until commit. writes:
-- rotation_floor.
create or replace function pgque.hold_tick(i_queue_id integer, i_position text)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue;
    v_tick   bigint;
begin
    perform pgque.check_position(i_position);
    lock table pgque.tick_log in row share mode;
    select q.* into v_queue from pgque.queue q where q.queue_id = i_queue_id for share;
    if not found then  -- it was dropped
        perform pgque.find_tick(i_queue_id, null);
    end if;
    v_tick := pgque.find_position(v_queue, i_position);

    -- A consumer before rotation_floor needs events that the floor would allow to be truncated.
    delete from pgque.rotation_floor n where n.queue_id = i_queue_id and n.tick_id > v_tick;
    perform pgque.check_tick_half();
    return v_tick;
end;
$$;

-- Finds the tick of such a position, as long as it is retained.
create or replace function pgque.find_position(i_queue pgque.queue, i_position text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return case
    when i_position = 'latest' then (pgque.find_newest_tick(i_queue.queue_id)).tick_id
    when i_position = 'earliest' then (pgque.find_oldest_tick(i_queue)).tick_id
    when i_position ~ '^[0-9]+$'
    then (pgque.find_retained_tick(i_queue, i_position::bigint)).tick_id
    else pgque.find_tick_before(i_queue, i_position::timestamptz) end;
end;
$$;

-- Returns the ticks between which a reader without a consumer finds events: those after a position, as
-- many whole ticks as i_max_count events allow, but at least one. Without a position, it returns the
-- newest ticks with at least i_max_count events, or all that are retained. It moves nothing and keeps
-- nothing: the ticks may be gone when their events are read, and then reading fails.
-- writes: nothing.
create or replace function pgque.retained_ticks(
    i_queue text, i_position text default null, i_max_count integer default null,
    out from_tick bigint, out to_tick bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_to     pgque.tick;
begin
    perform pgque.check_batch_limits(null, null, null, i_max_count);
    if i_position is not null then
        perform pgque.check_position(i_position);
        from_tick := pgque.find_position(v_queue, i_position);
        v_to := pgque.find_next_tick(v_queue.queue_id,
                                     pgque.find_tick(v_queue.queue_id, from_tick),
                                     null, null, null, coalesce(i_max_count, 2147483647));
        to_tick := coalesce(v_to.tick_id, from_tick);
        return;
    end if;
    v_to := pgque.find_newest_tick(v_queue.queue_id);
    to_tick := v_to.tick_id;
    from_tick := (select coalesce(max(t.tick_id) filter (where t.tick_event_seq
                                                              <= v_to.tick_event_seq - i_max_count),
                                  min(t.tick_id))
                  from pgque.tick t
                  where t.tick_queue = v_queue.queue_id and t.tick_id >= v_queue.queue_first_tick);
end;
$$;

-- Returns the newest tick of a queue.
create or replace function pgque.find_newest_tick(i_queue_id integer)
returns pgque.tick
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.find_tick(i_queue_id, (select max(t.tick_id) from pgque.tick t
                                where t.tick_queue = i_queue_id));
end;
$$;

-- Returns the oldest tick of a queue after which all events still exist.
create or replace function pgque.find_oldest_tick(i_queue pgque.queue)
returns pgque.tick
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.find_tick(i_queue.queue_id, (select min(t.tick_id) from pgque.tick t
                                      where t.tick_queue = i_queue.queue_id
                                        and t.tick_id >= i_queue.queue_first_tick));
end;
$$;

-- Returns the newest tick before which all ticks are older than a time. A queue's tick 1 has no events
-- before it, so it serves every earlier time.
create or replace function pgque.find_tick_before(i_queue pgque.queue, i_time timestamptz)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_oldest  pgque.tick := pgque.find_oldest_tick(i_queue);
    v_later   bigint;
begin
    if v_oldest.tick_time >= i_time and v_oldest.tick_id = 1 then
        return 1;
    elsif v_oldest.tick_time >= i_time then
        raise exception 'queue "%" does not retain all events since % any more', i_queue.queue_name,
                        i_time
            using errcode = 'PQ005',
                  hint = format('The oldest tick is %s, of %s. Pass a later time, or earliest. To '
                                'retain events longer in the future, set the queue''s parameter '
                                'retention.', v_oldest.tick_id, v_oldest.tick_time);
    end if;
    select t.tick_id into v_later
    from pgque.tick t
    where t.tick_queue = i_queue.queue_id
      and t.tick_id > v_oldest.tick_id
      and t.tick_time >= i_time
    order by t.tick_id
    limit 1;
    return (select max(t.tick_id)
            from pgque.tick t
            where t.tick_queue = i_queue.queue_id and (v_later is null or t.tick_id < v_later));
end;
$$;

-- Moves a registered consumer to a position (see above) and returns the tick at which it now stands.
-- Moving forward skips events, which the consumer will never get: skipped_events is their number, and if
-- there are any, the call is refused unless i_skip is true. Moving back repeats events: repeated_events.
-- In both cases, the tables that it replicates are copied again. Scheduled retries and dead letters
-- stay. Refused while a batch of the consumer is open.
-- locks: tick, against compaction, and the queue's row, against rotation, until commit; waits for a
-- concurrent move of the consumer. writes: position_log, counter_log, rotation_floor, replica_position,
-- replica_table.
create or replace function pgque.seek(
    i_queue text, i_consumer text, i_position text, i_skip boolean default false,
    out tick_id bigint, out skipped_events bigint, out repeated_events bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_from   bigint;
    v_batch  bigint;
begin
    if v_sub.sub_role in ('coop_member', 'slot') then
        perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
    end if;
    tick_id := pgque.hold_tick(v_sub.sub_queue, i_position);
    loop
        v_sub := pgque.find_subscription(i_queue, i_consumer);
        select s.sub_batch into v_batch  -- its own, or a subconsumer's
        from pgque.subscription s
        where v_sub.sub_id in (s.sub_id, s.sub_main) and s.sub_batch is not null
        limit 1;
        if v_batch is not null then
            raise exception 'consumer "%" on queue "%" has batch % open', i_consumer, i_queue,
                            v_batch
                using errcode = 'PQ016',
                      hint = format('Finish it first. To discard a batch without a lease, '
                                    'whose events are then delivered again or skipped: select '
                                    'pgque.register_consumer_at(%L, %L, %s);', i_queue, i_consumer,
                                    tick_id);
        end if;
        v_from := v_sub.sub_last_tick;
        skipped_events := pgque.count_between(
            pgque.find_tick(v_sub.sub_queue, v_from), pgque.find_tick(v_sub.sub_queue, tick_id),
            v_sub.sub_id);
        repeated_events := pgque.count_between(
            pgque.find_tick(v_sub.sub_queue, tick_id), pgque.find_tick(v_sub.sub_queue, v_from),
            v_sub.sub_id);
        if skipped_events > 0 and i_skip is not true then
            raise exception 'consumer "%" on queue "%" would skip % events and never get '
                            'them: it stands at tick %, before tick %', i_consumer, i_queue,
                            skipped_events, v_from, tick_id
                using errcode = 'PQ025',
                      hint = format('If you want that: select * from pgque.seek(%L, %L, %L, '
                                    'i_skip => true);', i_queue, i_consumer, i_position);
        end if;
        v_sub.sub_last_tick := tick_id;
        exit when pgque.append_position(v_sub);
    end loop;
    perform pgque.count_move(v_sub.sub_queue, v_sub.sub_id, v_from, tick_id);
    update pgque.replica_position r set empty_to = tick_id
    where r.sub_id = v_sub.sub_id and r.empty_to = v_from and skipped_events + repeated_events = 0;
    delete from pgque.replica_table r
    where r.sub_id = v_sub.sub_id and skipped_events + repeated_events > 0;
end;
$$;
