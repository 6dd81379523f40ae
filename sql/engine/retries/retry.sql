-- Schedules events of an open batch for another delivery to the same consumer. Events that have
-- used up their retries become dead letters, with the reason. Reads the batch once. Returns how
-- many events it settled; events that were scheduled or dead-lettered before stay unchanged. If the
-- batch is leased, only the owner of the lease may call this, with i_owner and i_epoch.
-- locks: none. writes: retry_queue, dead_letter.
create or replace function pgque.nack_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_retry_after interval default '1 minute',
    i_reason text default null, i_owner text default null, i_epoch bigint default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.nack_batch(i_batch_id, i_msg_ids, i_retry_after, array[i_reason], i_owner, i_epoch);
end;
$$;

-- Does the same with a reason for each event, in the order of the ids; a single reason applies to
-- all.
-- locks: none. writes: retry_queue, dead_letter.
create or replace function pgque.nack_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_retry_after interval, i_reasons text[],
    i_owner text default null, i_epoch bigint default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub          pgque.subscription := pgque.find_batch(i_batch_id);
    v_max_retries  integer;
begin
    perform pgque.check_may_settle(v_sub, i_owner, i_epoch);
    if i_retry_after is null or i_retry_after < '0' then
        perform pgque.refuse_value('a retry cannot wait %s', i_retry_after::text,
                                   'Give an interval of 0 or more.');
    end if;
    select coalesce(q.queue_max_retries, 5) into v_max_retries
    from pgque.queue q
    where q.queue_id = v_sub.sub_queue;
    return pgque.settle_events(i_batch_id, i_msg_ids, clock_timestamp() + i_retry_after,
                               v_max_retries, i_reasons, 'max retries exceeded');
end;
$$;

-- Makes events of an open batch dead letters at once, including those that were scheduled for another
-- delivery. Returns how many. If the batch is leased, only the owner of the lease may call this, with
-- i_owner and i_epoch.
-- locks: none. writes: dead_letter.
create or replace function pgque.dead_letter_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_reason text,
    i_owner text default null, i_epoch bigint default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.dead_letter_batch(i_batch_id, i_msg_ids, array[i_reason], i_owner, i_epoch);
end;
$$;

-- Does the same with a reason for each event, in the order of the ids; a single reason applies to
-- all.
-- locks: none. writes: dead_letter.
create or replace function pgque.dead_letter_batch(
    i_batch_id bigint, i_msg_ids bigint[], i_reasons text[],
    i_owner text default null, i_epoch bigint default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_may_settle(pgque.find_batch(i_batch_id), i_owner, i_epoch);
    return pgque.settle_events(i_batch_id, i_msg_ids, null, 0, i_reasons, null);
end;
$$;

-- Refuses to settle events of a batch under a live lease, or to finish it, unless the caller names
-- itself as the owner. Also refuses a caller that names itself but no longer has the lease. If
-- the lease is taken over between this check and the caller's commit, the caller is refused only if
-- the same transaction acks the batch.
create or replace function pgque.check_may_settle(
    i_sub pgque.subscription, i_owner text, i_epoch bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_owner is not null or i_epoch is not null then
        perform pgque.check_lease_holder(i_sub, i_owner, i_epoch);
    elsif i_sub.lease_until > clock_timestamp() then
        raise exception 'batch % is leased by "%" until %', i_sub.sub_batch, i_sub.lease_owner,
                        i_sub.lease_until
            using errcode = 'PQ004',
                  hint = 'Its owner finishes it with ack_batch, or passes i_owner and i_epoch; '
                         'others wait until the lease ends.';
    end if;
end;
$$;

-- Does the work of nack_batch, dead_letter_batch and event_retry in one pass. Events with fewer
-- retries than i_max_retries go to the retry queue, unless they are dead letters already; if
-- i_max_retries is null, all events go there. The others become dead letters, with their own reason,
-- or i_reason if they have none. Events of a subconsumer's batch belong to its main consumer. The tables
-- that the consumer replicates are copied again, because they lack these changes.
-- locks: none. writes: retry_queue, dead_letter, replica_table.
create or replace function pgque.settle_events(
    i_batch_id bigint, i_msg_ids bigint[], i_retry_at timestamptz, i_max_retries integer,
    i_reasons text[], i_reason text)
returns integer
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub       pgque.subscription := pgque.find_batch(i_batch_id);
    v_owner     pgque.subscription_base;
    v_events    integer;
    v_lost_ids  bigint[];
begin
    perform pgque.check_reasons(i_msg_ids, i_reasons);
    select b.* into v_owner
    from pgque.subscription_base b where b.sub_id = coalesce(v_sub.sub_main, v_sub.sub_id);
    with given as materialized (
        select distinct on (i.id) i.id,
               coalesce(case cardinality(i_reasons) when 1 then i_reasons[1] else i.reason end,
                        i_reason) as reason
        from unnest(i_msg_ids, i_reasons) i (id, reason)
        where i.id is not null order by i.id
    ), found as materialized (
        select e.*, g.reason,
               i_max_retries is null
               or coalesce(e.ev_retry, 0) < i_max_retries
                  and not exists (select from pgque.dead_letter d
                                  where d.dl_queue_id = v_owner.sub_queue
                                    and d.dl_consumer_id = v_owner.sub_consumer
                                    and d.ev_id = e.ev_id) as is_retried
        from pgque.pick_events(i_batch_id, i_msg_ids) e
        join given g on g.id = e.ev_id
    ), retried as (
        insert into pgque.retry_queue (
            ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
            ev_extra1, ev_extra2, ev_extra3, ev_extra4)
        select i_retry_at, v_owner.sub_queue, f.ev_id, f.ev_time, f.ev_txid, v_owner.sub_id,
               coalesce(f.ev_retry, 0) + 1, f.ev_type, f.ev_data,
               f.ev_extra1, f.ev_extra2, f.ev_extra3, f.ev_extra4
        from found f where f.is_retried
        on conflict do nothing
    ), copied as (
        delete from pgque.replica_table r where r.sub_id = v_owner.sub_id and exists (select from found)
    ), not_retried as (
        delete from pgque.retry_queue r using found f
        where not f.is_retried and r.ev_owner = v_owner.sub_id and r.ev_id = f.ev_id
    ), given_up as (
        insert into pgque.dead_letter (
            dl_queue_id, dl_consumer_id, dl_reason, ev_id, ev_time, ev_txid, ev_retry, ev_type,
            ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
        select v_owner.sub_queue, v_owner.sub_consumer, f.reason, f.ev_id, f.ev_time, f.ev_txid,
               f.ev_retry, f.ev_type, f.ev_data, f.ev_extra1, f.ev_extra2, f.ev_extra3, f.ev_extra4
        from found f where not f.is_retried on conflict do nothing
    )
    select count(f.ev_id), array_agg(g.id order by g.id) filter (where f.ev_id is null)
    into v_events, v_lost_ids
    from given g left join found f on f.ev_id = g.id;
    if v_lost_ids is not null then
        raise exception 'batch % has no event %', i_batch_id, array_to_string(v_lost_ids[:20], ', ')
            using errcode = 'PQ009', detail = format('%s of the ids are not in it.',
                                                     cardinality(v_lost_ids)),
                  hint = 'Pass ids of events that this batch delivered (msg_id, ev_id).';
    end if;
    return v_events;
end;
$$;

-- Returns the events of an open batch that have one of the ids, in any order. The condition on the
-- ids is in the SELECT of each table: for a few ids of a large batch that is six times faster than
-- a join.
create or replace function pgque.pick_events(i_batch_id bigint, i_ids bigint[])
returns setof pgque.event_template
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return query execute format(  -- quoted: made by batch_select
        'select * from (%s) e where e.ev_id = any ($1)',
        pgque.batch_select(i_batch_id, 'ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, '
                                       'ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4'))
    using i_ids;
end;
$$;

-- Refuses null ids, and a number of reasons that is neither one nor the number of ids.
create or replace function pgque.check_reasons(i_msg_ids bigint[], i_reasons text[])
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_msg_ids is null or array_position(i_msg_ids, null) > 0 then
        raise exception 'event null is in no batch'
            using errcode = 'PQ009',
                  hint = 'Pass ids of events that this batch delivered (msg_id, ev_id).';
    end if;
    if cardinality(i_reasons) not in (1, cardinality(i_msg_ids)) or i_reasons is null then
        raise exception '% reasons for % events', coalesce(cardinality(i_reasons)::text, 'null'),
                        cardinality(i_msg_ids)
            using errcode = 'PQ005',
                  hint = 'Give a reason for each id, in the order of the ids, or one for all.';
    end if;
end;
$$;

-- PgQ's call for one event: schedules it for another delivery at a given time, regardless of its retry
-- count. Returns 1, or 0 if the event was scheduled before; then it stays unchanged. Refused for a batch
-- under a live lease: its owner calls nack_batch.
-- locks: none. writes: retry_queue.
create or replace function pgque.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    pgque.subscription := pgque.find_batch(x_batch_id);
    v_waits  boolean;
begin
    if x_retry_time is null then
        perform pgque.refuse_value('the retry time is null', null,
                                   'Give the time of the next delivery.');
    end if;
    perform pgque.check_may_settle(v_sub, null, null);
    v_waits := exists (
        select from pgque.retry_queue r
        where r.ev_owner = coalesce(v_sub.sub_main, v_sub.sub_id) and r.ev_id = x_event_id);
    perform pgque.settle_events(x_batch_id, array[x_event_id], x_retry_time, null, array[null], null);
    return (not v_waits)::integer;
end;
$$;

-- Does the same, a number of seconds from now.
-- locks: none. writes: retry_queue.
create or replace function pgque.event_retry(
    x_batch_id bigint, x_event_id bigint, x_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if x_retry_seconds is null or x_retry_seconds < 0 then
        perform pgque.refuse_value('a retry cannot wait %s seconds', x_retry_seconds::text,
                                   'Give 0 or more.');
    end if;
    return pgque.event_retry(x_batch_id, x_event_id,
                             clock_timestamp() + make_interval(secs => x_retry_seconds));
end;
$$;

-- Returns the open batches of a queue, or of all, and of a subscription, or of all: their ids, the
-- subscription that gets their retries, and the snapshots between which their transactions finished.
create or replace function pgque.open_batches(
    i_queue_id integer default null, i_owner integer default null,
    out batch_id bigint, out ev_owner integer,
    out last_snapshot pg_snapshot, out next_snapshot pg_snapshot)
returns setof record
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select s.sub_batch, coalesce(s.sub_main, s.sub_id), l.tick_snapshot, n.tick_snapshot
   from pgque.subscription s
   cross join lateral (
       select t.tick_snapshot from pgque.tick_log t
       where t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick limit 1) l
   cross join lateral (
       select t.tick_snapshot from pgque.tick_log t
       where t.tick_queue = s.sub_queue and t.tick_id = s.sub_next_tick limit 1) n
   where s.sub_batch is not null
     and (i_queue_id is null or s.sub_queue = i_queue_id)
     and (i_owner is null or coalesce(s.sub_main, s.sub_id) = i_owner);
end;
$$;

-- Moves due retries back into their queues, as events only for their subscription. Retries of a batch
-- that is still open stay, because a worker that takes it over may schedule the same events again.
-- Retries that another session has made dead letters meanwhile are removed. It moves at
-- most as many per queue as make a tick due (ticker_max_count), and the next ones only after those are
-- in a tick, so that batches are no larger than usual. It makes that tick itself. For a queue that is
-- paused or has an external ticker, it neither makes a tick nor waits for one. Returns how many events
-- it moved.
-- locks: the retries it moves, except those that another session moves; those of make_ticks.
-- writes: retry_queue, current event tables, tick, tick_request.
create or replace function pgque.maint_retry_events()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
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
        if not v_queue.queue_ticker_paused and not v_queue.queue_external_ticker
           and exists (select from pgque.tick_request r where r.queue_id = v_queue.queue_id) then
            perform pgque.make_ticks(v_queue.queue_id, v_queue.queue_id);
            continue when exists (select from pgque.tick_request r
                                  where r.queue_id = v_queue.queue_id);
        end if;
        with open_batch as materialized (
            select * from pgque.open_batches(v_queue.queue_id)
        ), due as (
            delete from pgque.retry_queue d using (
                select r.ev_owner, r.ev_id
                from pgque.retry_queue r
                where r.ev_queue = v_queue.queue_id and r.ev_retry_after <= clock_timestamp()
                  and not exists (
                      select from open_batch b
                      where b.ev_owner = r.ev_owner
                        and pg_visible_in_snapshot(r.ev_txid, b.next_snapshot)
                        and not pg_visible_in_snapshot(r.ev_txid, b.last_snapshot))
                order by r.ev_retry_after
                limit v_queue.queue_ticker_max_count
                for update of r skip locked
            ) r
            where d.ev_owner = r.ev_owner and d.ev_id = r.ev_id
            returning d.*
        )
        insert into pgque.event (
            ev_table, ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data,
            ev_extra1, ev_extra2, ev_extra3, ev_extra4)
        select v_queue.queue_id * 4 + v_queue.queue_cur_table, d.ev_id, d.ev_time, d.ev_owner, d.ev_retry,
               d.ev_type, d.ev_data, d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4
        from due d
        join pgque.subscription_base s on s.sub_id = d.ev_owner
        where not exists (select from pgque.dead_letter l
                          where l.dl_queue_id = s.sub_queue and l.dl_consumer_id = s.sub_consumer
                            and l.ev_id = d.ev_id)
        order by d.ev_id;
        get diagnostics v_moved = row_count;
        if v_moved > 0 then
            insert into pgque.tick_request (queue_id) values (v_queue.queue_id);
            -- They keep their ids, and a consumer that waits for a minimum of events counts ids.
            perform nextval(v_queue.queue_seq) where not v_queue.queue_external_ticker;
        end if;
        v_total := v_total + v_moved;
    end loop;
    return v_total;
end;
$$;
