-- The states of many consumers at once, for a scheduler of batches: which batch each has open, who
-- has its lease, and, if none is open, whether the next one could open within the limits. There is a
-- row for each pair in the given order, even if the queue (queue_exists is false) or the consumer
-- (sub_role is null) does not exist. A shared consumer's row is followed by those of its subconsumers, a
-- partitioned consumer's, of role partitioned, by those of its slots (slot/n). lease_epoch counts the
-- claims; held_reason is set while the open batch is held; active_at is the time of the last move,
-- read_at the time of this call. The consumer belongs to assets of a location of a deployment. The call
-- opens nothing and does not wait.
create or replace function pgque.consumer_states(
    i_queues text[], i_consumers text[],
    i_min_lag interval default null, i_min_count integer default null,
    i_min_interval interval default null, i_max_count integer default null,
    out queue_name text, out consumer_name text, out subconsumer_name text,
    out queue_exists boolean, out sub_role text,
    out batch_id bigint, out lease_owner text, out lease_until timestamptz, out is_live boolean,
    out is_due boolean, out lease_epoch bigint, out held_reason text, out active_at timestamptz,
    out read_at timestamptz, out deployment text, out location text, out assets text[])
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_batch_limits(i_min_lag, i_min_count, i_min_interval, i_max_count);
    if cardinality(i_queues) is distinct from cardinality(i_consumers) or i_queues is null then
        raise exception 'the arrays have % queues and % consumers',
                        coalesce(cardinality(i_queues)::text, 'null'),
                        coalesce(cardinality(i_consumers)::text, 'null')
            using errcode = 'PQ005', hint = 'Pass two arrays of the same length: a queue and a '
                                            'consumer for each pair.';
    end if;
    return query
    with wanted as materialized (
        select w.queue, w.consumer, w.nr, q.queue_id, b.sub_id
        from unnest(i_queues, i_consumers) with ordinality w (queue, consumer, nr)
        left join pgque.queue q on q.queue_name = w.queue
        left join pgque.consumer c on c.co_name = w.consumer
        left join pgque.subscription_base b on b.sub_queue = q.queue_id and b.sub_consumer = c.co_id),
    member as (
        select w.queue, w.consumer, w.nr, w.queue_id, w.sub_id, null as subconsumer, c.n as slots
        from wanted w
        left join pgque.partition_consumer c
            on c.queue_id = w.queue_id and c.co_name = w.consumer and w.sub_id is null
        union all
        select w.queue, w.consumer, w.nr, w.queue_id, b.sub_id,
               substr(c.co_name, length(w.consumer) + 2), null
        from wanted w
        join pgque.subscription_base b on b.sub_main = w.sub_id
        join pgque.consumer c on c.co_id = b.sub_consumer
        union all
        select w.queue, w.consumer, w.nr, w.queue_id, b.sub_id, format('%s/%s', b.slot, c.n), null
        from wanted w
        join pgque.partition_consumer c on c.queue_id = w.queue_id and c.co_name = w.consumer
        join pgque.partition_slot_base b on b.queue_id = c.queue_id and b.co_name = c.co_name
        where w.sub_id is null)
    select m.queue, m.consumer, m.subconsumer, m.queue_id is not null,
           case when m.slots is not null then 'partitioned' else s.sub_role end, s.sub_batch,
           s.lease_owner, s.lease_until, coalesce(s.lease_until > clock_timestamp(), false),
           case when s.sub_batch is null and s.sub_last_tick is not null then
               pgque.limit_to_change(s.sub_id, s.sub_last_tick, (pgque.find_next_tick(
                    s.sub_queue, pgque.find_tick(s.sub_queue, s.sub_last_tick),
                    i_min_lag, i_min_count, i_min_interval, i_max_count)).tick_id) is not null
           else false end,
           s.lease_epoch, h.reason, s.sub_active, clock_timestamp(), d.deployment, d.location,
           d.assets
    from member m
    left join pgque.subscription s on s.sub_id = m.sub_id
    left join pgque.held_batch h
        on h.sub_id = s.sub_id and h.batch_id = s.sub_batch and h.epoch = s.lease_epoch
            and not h.is_retried
    left join pgque.consumer_deployment d on d.sub_id = coalesce(s.sub_main, s.sub_id, (
        select min(other.sub_id)
        from pgque.partition_slot_base b
        join pgque.consumer_deployment other on other.sub_id = b.sub_id
        where m.slots is not null and b.queue_id = m.queue_id and b.co_name = m.consumer))
    order by m.nr, m.subconsumer nulls first;
end;
$$;

-- Returns whether an open batch has any event: ticks that were made only because of their age may
-- enclose none. It stops at the first event, where a count would read all of them.
create or replace function pgque.batch_has_events(i_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_found boolean;
begin
    execute format('select exists (%s)', pgque.batch_select(i_batch_id, '1'))  -- quoted: made there
    into v_found;
    return v_found;
end;
$$;
