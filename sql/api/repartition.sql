-- Gives a partitioned consumer another number of slots, in one transaction. Each unfinished event
-- goes to the new slot of its key, in order, and acked events are not delivered again. Waiting
-- events, retries and dead letters move as well. Producers, the ticker and other consumers continue
-- meanwhile. Workers must claim slots of the new number, and their calls for an earlier slot fail.
-- Returns the number of events that were copied because the slots were at different positions; 0 if
-- the number of slots does not change. Refuses while a slot has an open batch of claim_batch: its
-- results may be stored under its id, and its events would come again under another one.
-- locks: the consumer's row in partition_consumer, its retries and dead letters; waits for
-- concurrent moves of its slots.
-- writes: partition_consumer, partition_slot_base, partition_held, consumer, subscription_base,
-- position_log, consumer_deployment, retry_queue, dead_letter, tick_request, the queue's current
-- event table.
create or replace function pgque.repartition(i_queue text, i_consumer text, i_slots integer)
returns bigint
language plpgsql security definer
as $$
declare
    v_queue    pgque.queue := pgque.find_queue(i_queue);
    v_n        integer;
    v_old      pgque.slot_state[];
    v_old_ids  integer[];
    v_start    bigint;
    v_carried  bigint;
begin
    perform pgque.check_read_committed('repartitioning');
    perform pgque.check_adopted();
    if (i_slots between 1 and 256) is not true then
        raise exception using
            errcode = 'PQ005',
            message = format('consumer "%s" cannot have %s slots', i_consumer,
                             coalesce(i_slots::text, 'null')),
            hint = 'Give it 1 to 256 slots.';
    end if;
    select c.n into v_n
    from pgque.partition_consumer c
    where c.queue_id = v_queue.queue_id and c.co_name = i_consumer
    for update;
    if not found then
        perform pgque.refuse_unpartitioned(i_queue, i_consumer);
    elsif v_n = i_slots then
        return 0;
    end if;

    v_old := pgque.stop_slots(v_queue.queue_id, i_consumer);
    select array_agg(s.sub_id), max(case when s.page_from is null then s.sub_last_tick
                                         else s.sub_next_tick end)
    into v_old_ids, v_start
    from unnest(v_old) s;
    -- Waits for sessions that move a retry or replay a dead letter now; these become events.
    perform from pgque.retry_queue r where r.ev_owner = any (v_old_ids) for update;
    perform from pgque.dead_letter d
    join pgque.subscription_base s on s.sub_queue = d.dl_queue_id and s.sub_consumer = d.dl_consumer_id
    where s.sub_id = any (v_old_ids)
    for update of d;

    delete from pgque.partition_slot_base b where b.sub_id = any (v_old_ids);
    update pgque.partition_consumer c set n = i_slots
    where c.queue_id = v_queue.queue_id and c.co_name = i_consumer;
    perform pgque.register_slots(i_queue, i_consumer, i_slots, 0, i_slots - 1, v_start);
    update pgque.partition_slot_base b set is_subscribed = true
    where b.queue_id = v_queue.queue_id and b.co_name = i_consumer;

    insert into pgque.consumer_deployment (sub_id, deployment, since)
    select b.sub_id, d.deployment, d.since
    from pgque.partition_slot_base b
    cross join (select * from pgque.consumer_deployment where sub_id = any (v_old_ids) limit 1) d
    where b.queue_id = v_queue.queue_id and b.co_name = i_consumer;
    perform pgque.move_failures(v_queue.queue_id, i_consumer, i_slots, v_old_ids);
    v_carried := pgque.carry_over(v_queue, i_consumer, i_slots, v_old, v_start);
    delete from pgque.subscription_base s where s.sub_id = any (v_old_ids);
    return v_carried;
end;
$$;

-- Raises the error for a consumer without slots.
create or replace function pgque.refuse_unpartitioned(i_queue text, i_consumer text)
returns void
language plpgsql immutable
as $$
begin
    raise exception using
        errcode = 'PQ002',
        message = format('consumer "%s" has no slots on queue "%s"',
                         coalesce(i_consumer, 'null'), i_queue),
        hint = 'Subscribe them first, with pgque.subscribe_slot(queue, consumer, slot, n).';
end;
$$;

-- Takes the leases of all slots of a consumer, and returns their positions. It waits for acks that
-- are not committed yet, and later ones fail. Refuses a slot with an open batch of claim_batch.
-- locks: waits for concurrent moves of the slots. writes: position_log.
create or replace function pgque.stop_slots(i_queue_id integer, i_consumer text)
returns pgque.slot_state[]
language plpgsql
as $$
declare
    v_slot  pgque.slot;
    v_sub   pgque.subscription;
begin
    for v_slot in
        select b.* from pgque.slot b
        where b.queue_id = i_queue_id and b.co_name = i_consumer
        order by b.slot
    loop
        loop
            select s.* into v_sub from pgque.subscription s where s.sub_id = v_slot.sub_id;
            if v_sub.sub_batch is not null and v_sub.lease_ttl is null then
                raise exception using
                    errcode = 'PQ016',
                    message = format('slot %s of consumer "%s" on queue "%s" has batch %s open',
                                     v_slot.slot, i_consumer, v_slot.queue_name, v_sub.sub_batch),
                    hint = 'Its results may be stored already: finish it first, and open no other '
                           'batch of a slot until then.';
            end if;
            v_sub.lease_owner := null;
            v_sub.lease_until := null;
            v_sub.lease_epoch := v_sub.lease_epoch + 1;
            v_sub.page_to := null;
            v_sub.held_at := null;
            exit when pgque.append_position(v_sub);
        end loop;
    end loop;
    return array(select s from pgque.slot_state s
                 where s.queue_id = i_queue_id and s.co_name = i_consumer
                 order by s.slot);
end;
$$;

-- Moves waiting events, retries and dead letters of slots to the new slot of their key.
-- locks: none beyond the caller's. writes: partition_held, retry_queue, dead_letter.
create or replace function pgque.move_failures(
    i_queue_id integer, i_consumer text, i_n integer, i_old_ids integer[])
returns void
language plpgsql
as $$
begin
    update pgque.partition_held h set sub_id = b.sub_id
    from pgque.partition_slot_base b
    where h.sub_id = any (i_old_ids)
      and b.queue_id = i_queue_id and b.co_name = i_consumer
      and b.slot = pgque.slot_of_key(h.ev_extra1, i_n);
    update pgque.retry_queue r set ev_owner = b.sub_id
    from pgque.partition_slot_base b
    where r.ev_owner = any (i_old_ids)
      and b.queue_id = i_queue_id and b.co_name = i_consumer
      and b.slot = pgque.slot_of_key(r.ev_extra1, i_n);
    update pgque.dead_letter d set dl_consumer_id = s.sub_consumer
    from pgque.partition_slot_base b
    join pgque.subscription_base s on s.sub_id = b.sub_id
    where d.dl_queue_id = i_queue_id
      and d.dl_consumer_id in (select o.sub_consumer from pgque.subscription_base o
                               where o.sub_id = any (i_old_ids))
      and b.queue_id = i_queue_id and b.co_name = i_consumer
      and b.slot = pgque.slot_of_key(d.ev_extra1, i_n);
end;
$$;

-- Gives the new slots, which all begin at one tick, the unfinished events before this tick. Events
-- with a key become waiting events, which are delivered before later events of their key. Events
-- without a key have no order and become events for slot 0 only. Returns their number.
-- locks: none. writes: partition_held, tick_request, the queue's current event table.
create or replace function pgque.carry_over(
    i_queue pgque.queue, i_consumer text, i_n integer, i_old pgque.slot_state[], i_start bigint)
returns bigint
language plpgsql
as $$
declare
    v_slot     pgque.slot_state;
    v_carried  bigint := 0;
    v_rows     bigint;
begin
    foreach v_slot in array i_old loop
        execute format(  -- quoted: made by slot_backlog, and of numbers
            'with unread as materialized (%s), '
            'keyed as ('
            '  insert into pgque.partition_held (sub_id, ev_id, ev_time, ev_txid, ev_retry, ev_type, '
            '    ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            '  select b.sub_id, u.ev_id, u.ev_time, u.ev_txid, u.ev_retry, u.ev_type, u.ev_data, '
            '    u.ev_extra1, u.ev_extra2, u.ev_extra3, u.ev_extra4 '
            '  from unread u join pgque.partition_slot_base b '
            '    on b.queue_id = $1 and b.co_name = $2 and b.slot = pgque.slot_of_key(u.ev_extra1, $3) '
            '  where u.ev_extra1 is not null on conflict do nothing returning 1), '
            'others as ('
            '  insert into %s_%s (ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
            '    ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            '  select u.ev_id, u.ev_time, b.sub_id, u.ev_retry, u.ev_type, u.ev_data, '
            '    u.ev_extra1, u.ev_extra2, u.ev_extra3, u.ev_extra4 '
            '  from unread u join pgque.partition_slot_base b '
            '    on b.queue_id = $1 and b.co_name = $2 and b.slot = 0 '
            '  where u.ev_extra1 is null order by u.ev_id returning 1) '
            'select (select count(*) from keyed) + (select count(*) from others)',
            pgque.slot_backlog(v_slot, i_start), i_queue.queue_data_pfx, i_queue.queue_cur_table)
        into v_rows using i_queue.queue_id, i_consumer, i_n;
        v_carried := v_carried + v_rows;
    end loop;
    if v_carried > 0 then
        insert into pgque.tick_request (queue_id) values (i_queue.queue_id);
    end if;
    return v_carried;
end;
$$;

-- Builds the SELECT of a slot's unfinished events that a slot beginning at a tick does not get: the
-- rest of the open batch after the last acked page, the events up to this tick, and later events
-- that are redelivered only to this slot. Adoption of a restored database gives it events of other
-- slots too, which it leaves out as any read of the slot does.
create or replace function pgque.slot_backlog(i_slot pgque.slot_state, i_until bigint)
returns text
language plpgsql
as $$
declare
    v_last   pg_snapshot := (pgque.find_tick(i_slot.queue_id, i_slot.sub_last_tick)).tick_snapshot;
    v_until  pg_snapshot := (pgque.find_tick(i_slot.queue_id, i_until)).tick_snapshot;
    v_next   pg_snapshot := v_last;
    v_c      record;
    v_where  text := 'false';
begin
    if i_slot.page_from is not null then
        v_next := (pgque.find_tick(i_slot.queue_id, i_slot.sub_next_tick)).tick_snapshot;
        v_c := pgque.snapshot_conditions(v_last, v_next);
        v_where := format('(%s or %s) and ev_id > %s%s', v_c.in_range, coalesce(v_c.in_list, 'false'),
                          i_slot.page_from, pgque.not_aside(i_slot.sub_id, i_slot.sub_batch));
    end if;
    v_c := pgque.snapshot_conditions(v_next, v_until);
    return format(
        'select * from pgque.event_%s where (%s or %s or %s) and (ev_owner is null or ev_owner = %s) '
        'and pgque.slot_of_key(ev_extra1, %s) = %s union all '
        'select * from pgque.event_%s where ev_txid >= %L and not pg_visible_in_snapshot(ev_txid, %L) '
        'and ev_owner = %s and pgque.slot_of_key(ev_extra1, %s) = %s',
        i_slot.queue_id, v_where, v_c.in_range, coalesce(v_c.in_list, 'false'), i_slot.sub_id,
        i_slot.n, i_slot.slot, i_slot.queue_id, pg_snapshot_xmin(v_until), v_until, i_slot.sub_id,
        i_slot.n, i_slot.slot);
end;
$$;
