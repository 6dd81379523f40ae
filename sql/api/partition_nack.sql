-- Schedules a message of the page for another delivery, or makes it a dead letter when its retries
-- are used up. Under the policy pause, later events of its key wait for it. Those in the same page
-- are delivered again, also after a dead letter, so the worker skips them, and a nack of one of them
-- changes nothing. Renews the lease. Returns 1.
-- locks: waits for a concurrent move of the same slot.
-- writes: position_log, retry_queue, dead_letter, partition_held, counter_log.
create or replace function pgque.nack_partitioned(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text,
    i_msg pgque.message, i_retry_after interval default '1 minute', i_reason text default null)
returns integer
language plpgsql security definer
as $$
declare
    v_slot     pgque.subscription;
    v_event    pgque.partition_held;
    v_is_last  boolean;
    v_pauses   boolean;
begin
    if (i_retry_after >= '0') is not true then
        perform pgque.refuse_value('no retry after %s', i_retry_after::text,
                                   'Give an interval of 0 or more.');
    end if;
    loop
        v_slot := pgque.find_leased_slot(i_queue, i_consumer, i_slot, i_n, i_worker);
        v_slot.lease_until := clock_timestamp() + v_slot.lease_ttl;
        exit when pgque.append_position(v_slot);
    end loop;

    select * into v_event from pgque.find_in_page(v_slot, i_msg.msg_id);
    if exists (select from pgque.partition_held h
               where h.sub_id = v_slot.sub_id and h.ev_extra1 = v_event.ev_extra1
                 and h.ev_id <= v_event.ev_id
                 and h.retry_after > coalesce(v_slot.held_at, '-infinity')) then
        return 1;
    end if;
    select coalesce(v_event.ev_retry, 0) >= coalesce(q.queue_max_retries, 5),
           b.on_failure = 'pause' and v_event.ev_extra1 is not null
    into v_is_last, v_pauses
    from pgque.slot b
    join pgque.queue q on q.queue_id = b.queue_id
    where b.sub_id = v_slot.sub_id;
    if v_slot.held_at is null and (v_is_last or not v_pauses) then
        perform pgque.nack_batch(v_slot.sub_batch, array[v_event.ev_id], i_retry_after, i_reason,
                                 v_slot.lease_owner, v_slot.lease_epoch);
    elsif v_is_last then
        insert into pgque.dead_letter (
            dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type,
            ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
        select v_slot.sub_queue, s.sub_consumer, coalesce(i_reason, 'max retries exceeded'),
               v_event.ev_id, v_event.ev_time, v_event.ev_txid, v_event.ev_retry, v_event.ev_type,
               v_event.ev_data, v_event.ev_extra1, v_event.ev_extra2, v_event.ev_extra3,
               v_event.ev_extra4
        from pgque.subscription_base s
        where s.sub_id = v_slot.sub_id
        on conflict do nothing;
        delete from pgque.partition_held h
        where h.sub_id = v_slot.sub_id and h.ev_id = v_event.ev_id;
    else
        insert into pgque.partition_held
        values (v_slot.sub_id, v_event.ev_id, clock_timestamp() + i_retry_after, v_event.ev_time,
                v_event.ev_txid, coalesce(v_event.ev_retry, 0) + 1, v_event.ev_type,
                v_event.ev_data, v_event.ev_extra1, v_event.ev_extra2, v_event.ev_extra3,
                v_event.ev_extra4)
        on conflict (sub_id, ev_id) do update
        set retry_after = excluded.retry_after, ev_retry = excluded.ev_retry;
        insert into pgque.counter_log (queue_id, sub_id, nacked) values (v_slot.sub_queue, v_slot.sub_id, 1);
    end if;
    if v_is_last and v_pauses then
        perform pgque.hold_next_in_page(v_slot, v_event);
    end if;
    return 1;
end;
$$;

-- Makes the next event of a dead letter's key in the page a held event that is due in a later page:
-- the worker skips it, and the ack must not cover it. The events after it wait for it. Does nothing
-- if the next event is scheduled for later anyway.
-- locks: none beyond the caller's. writes: partition_held.
create or replace function pgque.hold_next_in_page(
    i_slot pgque.subscription, i_dead pgque.partition_held)
returns void
language plpgsql
as $$
begin
    if i_slot.held_at is not null then
        update pgque.partition_held h set retry_after = clock_timestamp()
        where h.sub_id = i_slot.sub_id
          and h.ev_id = (select min(k.ev_id) from pgque.partition_held k
                         where k.sub_id = i_slot.sub_id and k.ev_extra1 = i_dead.ev_extra1
                           and k.ev_id > i_dead.ev_id)
          and h.ev_id <= i_slot.page_to
          and (h.retry_after > i_slot.held_at) is not true;
        return;
    end if;
    execute format(  -- quoted: made by tick_select
        'insert into pgque.partition_held '
        'select $1, ev_id, clock_timestamp(), ev_time, ev_txid, ev_retry, ev_type, ev_data, '
        '       ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        'from (%s) e where ev_extra1 = $2 and ev_id > $3 and ev_id <= $4 '
        'order by ev_id limit 1 on conflict do nothing',
        pgque.tick_select(i_slot.sub_batch, '*'))
    using i_slot.sub_id, i_dead.ev_extra1, i_dead.ev_id, i_slot.page_to;
end;
$$;

-- Returns the event with this id from the page that was delivered last.
create or replace function pgque.find_in_page(i_slot pgque.subscription, i_msg_id bigint)
returns setof pgque.partition_held
language plpgsql
as $$
begin
    if i_slot.held_at is not null then
        return query
        select h.*
        from pgque.partition_held h
        where h.sub_id = i_slot.sub_id and h.ev_id = i_msg_id and i_msg_id <= i_slot.page_to;
    elsif i_msg_id <= i_slot.page_to then
        return query execute format(  -- quoted: made by tick_select
            'select $1, ev_id, null::timestamptz, ev_time, ev_txid, ev_retry, ev_type, ev_data, '
            'ev_extra1, ev_extra2, ev_extra3, ev_extra4 from (%s) e where ev_id = $2 limit 1',
            pgque.tick_select(i_slot.sub_batch, '*'))
        using i_slot.sub_id, i_msg_id;
    end if;
    if not found then
        raise exception using
            errcode = 'PQ009',
            message = (select format('event %s is not in the page that slot %s of consumer "%s" on '
                                     'queue "%s" handed out', coalesce(i_msg_id::text, 'null'),
                                     b.slot, b.co_name, b.queue_name)
                       from pgque.slot b where b.sub_id = i_slot.sub_id),
            hint = 'Pass a message of the last receive_partitioned that is not acked yet.';
    end if;
end;
$$;
