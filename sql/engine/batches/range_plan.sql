-- Splits the events between two ticks into slices, as batch_read_plan does for a batch. Without a
-- consumer, these are the events for everybody; with one, also those redelivered to that consumer, and
-- for a slot, only those with its keys. No position protects the range from rotation, so ticks before
-- queue_first_tick are refused, and a slice that is read too late fails with PQ008.
-- locks: the queue's row, shared, so that rotation waits for the plan; none in a read-only transaction,
-- such as a standby's. writes: nothing.
create or replace function pgque.tick_range_read_plan(
    i_queue text, i_from_tick bigint, i_to_tick bigint, i_max_slices integer,
    i_consumer text default null,
    out slice_nr integer, out slice_sql text, out batch_events bigint,
    out slice_from text, out set_columns text[], out payload_bytes bigint, out batch_bytes bigint,
    out oldest_event timestamptz, out newest_event timestamptz)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_range  record;
    v_owner  text := 'ev_owner is null';
    v_looks  constant boolean := current_setting('transaction_read_only') = 'on'
                             and current_setting('transaction_isolation') = 'read committed';
begin
    if i_from_tick > i_to_tick then
        raise exception 'ticks % to % of queue "%" are in the wrong order', i_from_tick, i_to_tick, i_queue
            using errcode = 'PQ005', hint = 'Pass the earlier tick first.';
    end if;
    if not v_looks then
        select q.* into v_queue from pgque.queue q where q.queue_id = v_queue.queue_id for share;
    end if;
    v_range := pgque.events_between(
        v_queue.queue_id,
        (pgque.find_retained_tick(v_queue, i_from_tick)).tick_snapshot,
        (pgque.find_retained_tick(v_queue, i_to_tick)).tick_snapshot);
    if i_consumer is not null then
        v_owner := pgque.owner_condition(pgque.find_subscription(i_queue, i_consumer));
    end if;
    return query
    select *
    from pgque.plan_slices(
        v_range.tables,
        format('%s and (%s or %s)', v_owner, v_range.in_range, coalesce(v_range.in_list, 'false')),
        i_max_slices);
    if v_looks then  -- Rotation may have truncated a table before the plan: then the tick is gone, too.
        perform pgque.find_retained_tick(pgque.find_queue(i_queue), i_from_tick);
    end if;
end;
$$;

-- Returns a tick of a queue after which all events still exist. The queue's row, which the caller
-- holds, shows how far rotation has come.
create or replace function pgque.find_retained_tick(i_queue pgque.queue, i_tick_id bigint)
returns pgque.tick
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_tick   pgque.tick;
    v_first  bigint;
    v_last   bigint;
begin
    select t.* into v_tick
    from pgque.tick t
    where t.tick_queue = i_queue.queue_id
      and t.tick_id = i_tick_id
      and t.tick_id >= i_queue.queue_first_tick;
    if not found then
        select min(t.tick_id), max(t.tick_id) into v_first, v_last
        from pgque.tick t
        where t.tick_queue = i_queue.queue_id and t.tick_id >= i_queue.queue_first_tick;
        raise exception 'queue "%" has no tick % any more, or not yet', i_queue.queue_name,
                        coalesce(i_tick_id::text, 'of any number')
            using errcode = 'PQ005',
                  hint = format('Ticks %s to %s are retained. A registered consumer keeps those '
                                'after its position.', v_first, v_last);
    end if;
    return v_tick;
end;
$$;
