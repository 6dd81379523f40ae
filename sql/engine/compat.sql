-- Functions of PgQ and PgQue that have another name here, so that SQL written for those runs
-- unchanged.

-- send_batch under the core's argument names.
create or replace function pgque.insert_event_bulk(queue_name text, ev_type text, ev_data_list text[])
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, ev_type, ev_data_list);
end;
$$;

-- next_batch_custom without limits.
create or replace function pgque.next_batch_info(i_queue_name text, i_consumer_name text,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    select * into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time,
        cur_tick_event_seq, prev_tick_event_seq
    from pgque.next_batch_custom(i_queue_name, i_consumer_name, null::interval, null, null,
        null);
end;
$$;

-- The tick that would end a batch after the given tick; see find_next_tick. Nulls when there is none.
create or replace function pgque.find_tick_helper(
    i_queue_id integer, i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_prev_tick_seq bigint,
    i_min_count bigint, i_min_interval interval,
    out next_tick_id bigint, out next_tick_time timestamptz, out next_tick_seq bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_prev  pgque.tick;
    v_next  pgque.tick;
begin
    if i_queue_id is null or i_prev_tick_id is null
       or i_prev_tick_time is null and i_min_interval is not null
       or i_prev_tick_seq is null and i_min_count is not null
       or i_min_count not between 0 and 2147483647 or i_min_interval < '0' then
        raise exception 'no tick of queue % after tick %', coalesce(i_queue_id::text, 'null'),
                        coalesce(i_prev_tick_id::text, 'null')
            using errcode = 'PQ005', hint = 'Give the queue and tick as in pgque.tick, and '
                                            'minimums of 0 or more, or null.';
    end if;
    v_prev.tick_id := i_prev_tick_id;
    v_prev.tick_time := i_prev_tick_time;
    v_prev.tick_event_seq := i_prev_tick_seq;
    v_next := pgque.find_next_tick(i_queue_id, v_prev, null, i_min_count::integer, i_min_interval,
                                   null);
    next_tick_id := v_next.tick_id;
    next_tick_time := v_next.tick_time;
    next_tick_seq := v_next.tick_event_seq;
end;
$$;

-- PgQ's name for force_next_tick.
create or replace function pgque.force_tick(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.force_next_tick(i_queue_name);
end;
$$;
