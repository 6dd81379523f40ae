-- Gives a partitioned consumer another number of slots, once all its slots stand at one tick without an open
-- batch. Until then each call renews the request: the slots get events up to the tick that the first of them
-- has reached, and no further. Repeat the call until it returns 0; it returns how many slots have not reached
-- that tick. The request is forgotten 10 minutes after the last call, and by a call with the current number.
-- Events are delivered once, and in the order of their keys; retries and dead letters go to the new slot of
-- their key. Workers must then claim slots of the new number.
-- locks: the consumer's row in partition_consumer, its retries and dead letters; waits for concurrent
-- moves of its slots. writes: partition_consumer, partition_slot_base, consumer, subscription_base,
-- position_log, consumer_deployment, retry_queue, dead_letter, tick_request, the queue's current event
-- table.
create or replace function pgque.repartition(i_queue text, i_consumer text, i_slots integer)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   pgque.queue := pgque.find_queue(i_queue);
    v_n       integer;
    v_tick    bigint;
    v_behind  bigint;
    v_subs    pgque.subscription[];
    v_old     pgque.partition_slot_base[];
begin
    perform pgque.check_read_committed('repartitioning');
    perform pgque.check_adopted();
    if (i_slots between 1 and 256) is not true then
        perform pgque.refuse_value('a consumer cannot have %s slots', i_slots::text,
                                   'Give it 1 to 256 slots.');
    end if;
    select c.n into v_n
    from pgque.partition_consumer c
    where c.queue_id = v_queue.queue_id and c.co_name = i_consumer
    for update;
    if not found then
        perform pgque.refuse_unpartitioned(i_queue, i_consumer);
    end if;

    loop
        select array_agg(s), max(coalesce(s.sub_next_tick, s.sub_last_tick)) into v_subs, v_tick
        from pgque.partition_slot_base b
        join pgque.subscription s on s.sub_id = b.sub_id
        where b.queue_id = v_queue.queue_id and b.co_name = i_consumer;
        v_behind := (select count(*) from unnest(v_subs) s
                     where v_n <> i_slots and (s.sub_batch is not null or s.sub_last_tick < v_tick));
        exit when v_n = i_slots or v_behind > 0;
        begin
            perform pgque.stop_slots(v_subs);
            exit;
        exception when serialization_failure then
            null;  -- No slot is stopped: their positions are read again.
        end;
    end loop;
    update pgque.partition_consumer c
    set n = case when v_behind > 0 then v_n else i_slots end,
        change_tick = case when v_behind > 0 then v_tick end,
        change_asked_at = case when v_behind > 0 then clock_timestamp() end
    where c.queue_id = v_queue.queue_id and c.co_name = i_consumer;
    if v_n <> i_slots and v_behind = 0 then
        with old as (
            delete from pgque.partition_slot_base b
            where b.queue_id = v_queue.queue_id and b.co_name = i_consumer
            returning b as slot
        )
        select array_agg(o.slot) into v_old from old o;
        perform pgque.register_slots(
            i_queue, i_consumer, i_slots, array(select generate_series(0, i_slots - 1)), v_tick);
        perform pgque.hand_over(v_queue, i_consumer, v_old, v_n, i_slots, v_tick);
    end if;
    if v_n <> i_slots then
        update pgque.partition_slot_base b set is_subscribed = true
        where b.queue_id = v_queue.queue_id and b.co_name = i_consumer;
    end if;
    return v_behind;
end;
$$;

-- Returns where the next batch of a slot ends: at i_next_tick, but not after the tick at which the slots stop
-- while another number of slots is requested; null if there is no next batch. Until a slot has reached that
-- tick, it always has a next batch, regardless of the caller's limits.
create or replace function pgque.limit_to_change(
    i_sub_id integer, i_last_tick bigint, i_next_tick bigint)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_tick bigint;
begin
    select c.change_tick into v_tick
    from pgque.partition_slot_base b
    join pgque.partition_consumer c on c.queue_id = b.queue_id and c.co_name = b.co_name
    where b.sub_id = i_sub_id
      and c.change_asked_at > clock_timestamp() - interval '10 minutes';
    return case when v_tick is null then i_next_tick
                when v_tick > i_last_tick then least(i_next_tick, v_tick) end;
end;
$$;

-- Raises the error for a consumer without slots.
create or replace function pgque.refuse_unpartitioned(i_queue text, i_consumer text)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception 'consumer "%" has no slots on queue "%"', coalesce(i_consumer, 'null'), i_queue
        using errcode = 'PQ002',
              hint = 'Subscribe them first, with pgque.subscribe_slot(queue, consumer, slot, n).';
end;
$$;

-- Ends the leases of slots. Raises a serialization failure if one of them was moved since its position
-- was read, for example by an ack that was not committed yet.
-- locks: waits for concurrent moves of the slots. writes: position_log.
create or replace function pgque.stop_slots(i_subs pgque.subscription[])
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    foreach v_sub in array i_subs loop
        v_sub.lease_owner := null;
        v_sub.lease_until := null;
        v_sub.lease_epoch := v_sub.lease_epoch + 1;
        if not pgque.append_position(v_sub) then
            raise exception 'a slot was moved' using errcode = 'serialization_failure';
        end if;
    end loop;
end;
$$;

-- Gives the new slots what the earlier ones have apart from their position: the deployment, retries, dead
-- letters, and events after the tick i_tick that are redelivered only to an earlier slot. Adoption of a
-- restored database gives a slot events of other slots too, which stay behind. Then it removes the earlier
-- slots.
-- locks: the retries and dead letters. writes: consumer_deployment, retry_queue, dead_letter,
-- subscription_base, tick_request, the queue's current event table.
create or replace function pgque.hand_over(
    i_queue pgque.queue, i_consumer text, i_old pgque.partition_slot_base[], i_old_n integer,
    i_n integer, i_tick bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_old_ids    integer[] := array(select o.sub_id from unnest(i_old) o);
    v_consumers  integer[] := array(select s.sub_consumer from pgque.subscription_base s
                                    where s.sub_id = any (v_old_ids));
    v_snapshot   pg_snapshot := (pgque.find_tick(i_queue.queue_id, i_tick)).tick_snapshot;
    v_rows       bigint;
begin
    -- Waits for sessions that are moving a retry or replaying a dead letter; these become events.
    perform from pgque.retry_queue r where r.ev_owner = any (v_old_ids) for update;
    perform from pgque.dead_letter d
    where d.dl_queue_id = i_queue.queue_id and d.dl_consumer_id = any (v_consumers)
    for update;

    insert into pgque.consumer_deployment
    select b.sub_id, d.deployment, d.since, d.location, d.assets
    from pgque.partition_slot_base b
    cross join (select * from pgque.consumer_deployment where sub_id = any (v_old_ids) limit 1) d
    where b.queue_id = i_queue.queue_id and b.co_name = i_consumer;
    update pgque.retry_queue r set ev_owner = b.sub_id
    from pgque.partition_slot_base b
    where r.ev_owner = any (v_old_ids)
      and b.queue_id = i_queue.queue_id and b.co_name = i_consumer
      and b.slot = pgque.slot_of_key(r.ev_extra1, i_n);
    update pgque.dead_letter d set dl_consumer_id = s.sub_consumer
    from pgque.partition_slot_base b
    join pgque.subscription_base s on s.sub_id = b.sub_id
    where d.dl_queue_id = i_queue.queue_id and d.dl_consumer_id = any (v_consumers)
      and b.queue_id = i_queue.queue_id and b.co_name = i_consumer
      and b.slot = pgque.slot_of_key(d.ev_extra1, i_n);
    execute format(  -- quoted: a number
        'insert into pgque.event (ev_table, ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
        '  ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        'select $1, e.ev_id, e.ev_time, b.sub_id, e.ev_retry, e.ev_type, e.ev_data, '
        '  e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4 '
        'from pgque.event_%s e '
        'join unnest($2) o on o.sub_id = e.ev_owner and o.slot = pgque.slot_of_key(e.ev_extra1, $3) '
        'join pgque.partition_slot_base b on b.queue_id = o.queue_id and b.co_name = o.co_name '
        '  and b.slot = pgque.slot_of_key(e.ev_extra1, $4) '
        'where e.ev_txid >= pg_snapshot_xmin($5) and not pg_visible_in_snapshot(e.ev_txid, $5) '
        'order by e.ev_id', i_queue.queue_id)
    using i_queue.queue_id * 4 + i_queue.queue_cur_table, i_old, i_old_n, i_n, v_snapshot;
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        insert into pgque.tick_request (queue_id) values (i_queue.queue_id);
    end if;
    delete from pgque.subscription_base s where s.sub_id = any (v_old_ids);
end;
$$;
