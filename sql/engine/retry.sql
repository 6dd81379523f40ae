-- Schedules events of an open batch for another delivery to the same consumer; events that had
-- all their retries become dead letters, with the reason. One pass over the batch. Returns how
-- many events it settled; an event scheduled before stays as it was.
-- locks: none. writes: retry_queue, dead_letter.
create or replace function pgque.nack_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_retry_after interval default '1 minute',
    i_reason text default null)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_max_retries integer;
begin
    if i_retry_after is null or i_retry_after < '0' then
        raise exception using
            errcode = 'PQ005',
            message = format('no retry after %s', coalesce(i_retry_after::text, 'null')),
            hint = 'Give an interval of 0 or more.';
    end if;
    select coalesce(q.queue_max_retries, 5) into v_max_retries
    from pgque.queue q
    where q.queue_id = (pgque.find_batch(i_batch_id)).sub_queue;
    return pgque.settle_events(i_batch_id, i_msg_ids, clock_timestamp() + i_retry_after,
                               v_max_retries, coalesce(i_reason, 'retries used up'));
end;
$$;

-- Makes events of an open batch dead letters at once. Returns how many.
-- locks: none. writes: dead_letter.
create or replace function pgque.dead_letter_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_reason text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.settle_events(i_batch_id, i_msg_ids, null, 0, i_reason);
end;
$$;

-- The pass that nack_batch, dead_letter_batch and event_retry share: ids below the maximum of
-- retries go to the retry queue (always, when that is null), the others to the dead letters. Those
-- of a subconsumer's batch belong to its main consumer.
-- locks: none. writes: retry_queue, dead_letter.
create or replace function pgque.settle_events(
    i_batch_id bigint, i_msg_ids bigint[], i_retry_at timestamptz, i_max_retries integer,
    i_reason text)
returns integer
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_sub    pgque.subscription := pgque.find_batch(i_batch_id);
    v_owner  pgque.subscription_base;
    v_found  bigint[];
    v_lost   record;
begin
    select b.* into v_owner
    from pgque.subscription_base b
    where b.sub_id = coalesce(v_sub.sub_main, v_sub.sub_id);
    execute format(  -- quoted: made by batch_event_sql
        'with ev as materialized ('
        '  select b.*, coalesce(b.ev_retry, 0) < coalesce($4, 2147483647) as again '
        '  from (%s) b where b.ev_id = any ($1)), '
        'retried as ('
        '  insert into pgque.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, '
        '    ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        '  select $5, $2, ev_id, ev_time, ev_txid::text::xid8, $3, coalesce(ev_retry, 0) + 1, '
        '    ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        '  from ev where again on conflict do nothing), '
        'died as ('
        '  insert into pgque.dead_letter (dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, '
        '    ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        '  select $2, $6, $7, ev_id, ev_time, ev_txid::text::xid8, ev_retry, '
        '    ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        '  from ev where not again on conflict do nothing) '
        'select array_agg(ev_id) from ev', pgque.batch_event_sql(i_batch_id))
    into v_found
    using i_msg_ids, v_owner.sub_queue, v_owner.sub_id, i_max_retries, i_retry_at,
          v_owner.sub_consumer, i_reason;

    select i.id, count(*) over () as events into v_lost
    from unnest(i_msg_ids) i(id)
    left join unnest(v_found) f(id) on f.id = i.id
    where f.id is null
    limit 1;
    if found or i_msg_ids is null then
        raise exception using
            errcode = 'PQ009',
            message = format('event %s is not in batch %s', coalesce(v_lost.id::text, 'null'),
                             i_batch_id),
            detail = format('%s of the %s ids are not.', v_lost.events, cardinality(i_msg_ids)),
            hint = 'Pass ids of events that this batch delivered (msg_id, ev_id).';
    end if;
    return coalesce(cardinality(v_found), 0);
end;
$$;

-- PgQ's call for one event: delivers it again at a time, however often that happened before.
-- locks: none. writes: retry_queue.
create or replace function pgque.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    if x_retry_time is null then
        raise exception using
            errcode = 'PQ005',
            message = 'the retry time is null',
            hint = 'Give the time of the next delivery.';
    end if;
    return pgque.settle_events(x_batch_id, array[x_event_id], x_retry_time, null, null);
end;
$$;

-- The same, so many seconds from now.
-- locks: none. writes: retry_queue.
create or replace function pgque.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_seconds integer)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    if x_retry_seconds is null or x_retry_seconds < 0 then
        raise exception using
            errcode = 'PQ005',
            message = format('no retry after %s seconds', coalesce(x_retry_seconds::text, 'null')),
            hint = 'Give 0 or more.';
    end if;
    return pgque.settle_events(x_batch_id, array[x_event_id],
                               clock_timestamp() + make_interval(secs => x_retry_seconds), null, null);
end;
$$;

-- Puts retries that are due back into their queues, as events of their subscription alone, in
-- portions of 10,000 so that no call takes long. Returns how many.
-- locks: the retries it moves; those that another session moves are left to it.
-- writes: retry_queue, current event tables.
create or replace function pgque.maint_retry_events()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue  pgque.queue;
    v_moved  integer;
    v_total  integer := 0;
begin
    for v_queue in
        select q.*
        from pgque.queue q
        where not q.queue_disable_insert
          and exists (select from pgque.retry_queue r
                      where r.ev_queue = q.queue_id and r.ev_retry_after <= clock_timestamp())
    loop
        execute format(  -- quoted: made of the queue's number
            'with due as ('
            '  delete from pgque.retry_queue d using ('
            '    select r.ev_owner, r.ev_id from pgque.retry_queue r '
            '    where r.ev_queue = $1 and r.ev_retry_after <= clock_timestamp() '
            '    order by r.ev_retry_after limit 10000 for update skip locked) r '
            '  where d.ev_owner = r.ev_owner and d.ev_id = r.ev_id returning d.*) '
            'insert into %s_%s (ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
            '  ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
            'select ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
            '  ev_extra1, ev_extra2, ev_extra3, ev_extra4 from due order by ev_id',
            v_queue.queue_data_pfx, v_queue.queue_cur_table)
        using v_queue.queue_id;
        get diagnostics v_moved = row_count;
        if v_moved > 0 then
            perform pgque.force_next_tick(v_queue.queue_name);
        end if;
        v_total := v_total + v_moved;
    end loop;
    return v_total;
end;
$$;
