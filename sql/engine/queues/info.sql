-- Each queue with its settings, the age of its last tick, the count of events since then, and the
-- events per second of the last 20 ticks. No row for a queue that does not exist.
create or replace function pgque.get_queue_info(
    i_queue_name text,
    out queue_name text, out queue_ntables integer, out queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval,
    out queue_ticker_idle_period interval, out ticker_lag interval,
    out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return query
    select q.queue_name, q.queue_ntables, q.queue_cur_table, q.queue_rotation_period,
           q.queue_switch_time, q.queue_external_ticker, q.queue_ticker_paused,
           q.queue_ticker_max_count, q.queue_ticker_max_lag, q.queue_ticker_idle_period,
           clock_timestamp() - newest.tick_time,
           ((newest.tick_event_seq - before.tick_event_seq)
            / nullif(extract(epoch from newest.tick_time - before.tick_time), 0))::double precision,
           newest.last_event_id - newest.tick_event_seq, newest.tick_id
    from pgque.queue q
    join pgque.queue_progress newest on newest.queue_id = q.queue_id and newest.tick_id is not null
    left join lateral (
        select * from pgque.tick t
        where t.tick_queue = q.queue_id and t.tick_id >= newest.tick_id - 20
        order by t.tick_id limit 1
    ) before on true
    where i_queue_name is null or q.queue_name = i_queue_name
    order by q.queue_name;
    if not found then
        perform pgque.check_logs_visible();
    end if;
end;
$$;

-- The same for all queues.
create or replace function pgque.get_queue_info(out queue_name text, out queue_ntables integer, out
    queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval,
    out queue_ticker_idle_period interval, out ticker_lag interval,
    out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select * from pgque.get_queue_info(null);
end;
$$;

-- Each consumer with its lag, its open batch, and the number of events between its position and the
-- last tick (a difference of event ids). No row for names that do not exist.
create or replace function pgque.get_consumer_info(
    i_queue_name text, i_consumer_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return query
    select q.queue_name, p.co_name, clock_timestamp() - p.tick_time,
           clock_timestamp() - p.sub_active, p.sub_last_tick, p.sub_batch, p.sub_next_tick,
           p.newest_event_seq - p.tick_event_seq
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    where (i_queue_name is null or q.queue_name = i_queue_name)
      and (i_consumer_name is null or p.co_name = i_consumer_name)
    order by q.queue_name, p.co_name;
    if not found then
        perform pgque.check_positions_visible();
    end if;
end;
$$;

-- The same for one queue.
create or replace function pgque.get_consumer_info(i_queue_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint,
    out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select * from pgque.get_consumer_info(i_queue_name, null);
end;
$$;

-- The same for all queues.
create or replace function pgque.get_consumer_info(out queue_name text, out consumer_name text, out
    lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint,
    out pending_events bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select * from pgque.get_consumer_info(null, null);
end;
$$;

-- An open batch: its queue and consumer, and what it spans. A row of nulls for a batch that is not
-- open.
create or replace function pgque.get_batch_info(
    x_batch_id bigint,
    out queue_name text, out consumer_name text,
    out batch_start timestamptz, out batch_end timestamptz,
    out prev_tick_id bigint, out tick_id bigint, out lag interval,
    out seq_start bigint, out seq_end bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    begin
        v_sub := pgque.find_batch(x_batch_id);
    exception
        when sqlstate 'PQ003' then
            return;
    end;
    select q.queue_name, c.co_name, prev.tick_time, cur.tick_time, prev.tick_id, cur.tick_id,
           clock_timestamp() - cur.tick_time, prev.tick_event_seq, cur.tick_event_seq
    into queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id,
         lag, seq_start, seq_end
    from pgque.queue q
    cross join pgque.consumer c
    cross join pgque.find_tick(v_sub.sub_queue, v_sub.sub_last_tick) prev
    cross join pgque.find_tick(v_sub.sub_queue, v_sub.sub_next_tick) cur
    where q.queue_id = v_sub.sub_queue and c.co_id = v_sub.sub_consumer;
end;
$$;
