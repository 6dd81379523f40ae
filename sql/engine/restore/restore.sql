-- Adoption after pg_restore. The transaction ids in restored ticks and events come from the old
-- cluster and cannot be compared with those of the new one. So nothing is ticked, read or truncated
-- until adopt_restored_database has rewritten the unread events. See docs/restore.md.

-- Refuses to work in a restored database that is not adopted yet: transaction ids of two clusters
-- cannot be compared.
create or replace function pgque.check_adopted()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if exists (select from pgque.config c, pgque.origin o where c.origin_id <> o.origin_id) then
        raise exception 'this database was restored from a dump and is not adopted yet'
            using errcode = 'PQ018',
                  hint = 'Let an administrator run: select pgque.adopt_restored_database();';
    end if;
end;
$$;

-- Writes the unfinished events of all consumers again as new events. A consumer's next batch has all
-- of its events, with their ids, times and retry counts. Open batches are canceled and leases end.
-- Returns how many rows it wrote, and 0 if there is nothing to adopt.
-- locks: ticks, positions and the event tables, against all except readers of events.
-- writes: all of them; config, lineage_seq, batch_id_seq.
create or replace function pgque.adopt_restored_database()
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_origin   pgque.origin;
    v_queue    pgque.queue;
    v_missing  text;
    v_rows     bigint := 0;
begin
    perform pgque.check_read_committed('adoption');
    lock table pgque.queue in share row exclusive mode;
    lock table pgque.tick_log, pgque.position_log in access exclusive mode;
    select o.* into v_origin
    from pgque.origin o
    join pgque.config c on c.origin_id <> o.origin_id;
    if not found then
        return 0;
    end if;

    -- A dump that waited for a lock for longer than the snapshot patience found an empty log. If its
    -- consumers were taken as finished, their events would be lost.
    select string_agg(format('"%s"', m.queue_name), ', ' order by m.queue_name) into v_missing
    from (
        select q.queue_name from pgque.queue q
        where not exists (select from pgque.tick t where t.tick_queue = q.queue_id)
        union
        select q.queue_name
        from pgque.subscription_base b
        join pgque.queue q on q.queue_id = b.sub_queue
        left join pgque.subscription s on s.sub_id = b.sub_id
        left join pgque.tick t on t.tick_queue = b.sub_queue and t.tick_id = s.sub_last_tick
        where s.sub_id is null or s.sub_last_tick is not null and t.tick_id is null
    ) m;
    if v_missing is not null then
        raise exception 'this dump lacks the positions of the consumers of these queues: %',
                        v_missing
            using errcode = 'PQ018',
                  hint = 'It waited for a lock for longer than pgque.set_snapshot_patience allows. '
                         'Nothing was changed. Restore another dump.';
    end if;
    for v_queue in select q.* from pgque.queue q order by q.queue_id loop
        v_rows := v_rows + pgque.renumber_events(v_queue, v_origin.first_txid);
    end loop;
    perform pgque.renumber_positions();
    update pgque.config set origin_id = v_origin.origin_id;
    perform pgque.renew_incarnation();
    return v_rows;
end;
$$;

-- Returns what each consumer of a queue has not finished: all events that its last tick did not see
-- and, for the open batch of a cooperative member, the events between the batch's two ticks. For a
-- queue without consumers, these are the events after its last tick.
create or replace view pgque.unfinished as
select s.sub_queue as queue_id, coalesce(s.sub_main, s.sub_id) as owner_id,
       prev.tick_snapshot as after_snapshot,
       case when s.sub_main is not null then cur.tick_snapshot end as until_snapshot
from pgque.subscription s
join pgque.tick prev on prev.tick_queue = s.sub_queue and prev.tick_id = s.sub_last_tick
left join pgque.tick cur on cur.tick_queue = s.sub_queue and cur.tick_id = s.sub_next_tick
union all
select q.queue_id, null, q.tick_snapshot, null
from pgque.queue_progress q
where not exists (select from pgque.subscription_base s where s.sub_queue = q.queue_id);

-- Writes the unfinished events of a queue again, under this transaction's id: copies them with their
-- owners, empties the event tables, and inserts them into the current one. An event that all
-- consumers need stays one row; otherwise each consumer that needs it gets its own row. The
-- transaction that wrote a row (xmin, which has 32 bits of the id) shows whether it was sent after
-- the restore; all consumers need such rows.
-- locks: the event tables, exclusively. writes: the event tables, retry_queue,
-- dead_letter.
create or replace function pgque.renumber_events(i_queue pgque.queue, i_first_txid xid8)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_columns  constant text := 'ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
                                'ev_extra1, ev_extra2, ev_extra3, ev_extra4';
    v_rows     bigint;
begin
    -- With the table, its children are locked and truncated. All names are made of the queue's number.
    execute format('lock table %s in access exclusive mode', i_queue.queue_data_pfx);  -- quoted: see above
    execute format(  -- quoted: see above
        $sql$
        create table %1$s_kept as
        with consumer as (
            select u.owner_id, array_agg(u.after_snapshot) as after_snapshots,
                   array_agg(u.until_snapshot) as until_snapshots
            from pgque.unfinished u
            where u.queue_id = %2$s
            group by u.owner_id
        )
        select e.ev_id, e.ev_time, coalesce(e.ev_owner, copy.owner_id) as ev_owner, e.ev_retry,
               e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
        from %1$s e
        cross join lateral (
            select array_agg(c.owner_id) as owners
            from consumer c
            where (e.ev_owner is null or e.ev_owner = c.owner_id)
              and (pgque.is_written_since(e.xmin, %3$L)
                   or exists (
                       select from unnest(c.after_snapshots, c.until_snapshots) s (after, until)
                       where not pg_visible_in_snapshot(e.ev_txid, s.after)
                         and coalesce(pg_visible_in_snapshot(e.ev_txid, s.until), true)))
        ) needed
        cross join lateral unnest(
            case when cardinality(needed.owners) = (select count(*) from consumer)
                 then array[null]::integer[] else needed.owners end) copy (owner_id)
        $sql$,
        i_queue.queue_data_pfx, i_queue.queue_id, i_first_txid);
    execute format('truncate %s', i_queue.queue_data_pfx);  -- quoted: see above
    execute format('insert into %1$s_%2$s (%3$s) select %3$s from %1$s_kept order by ev_id',  -- quoted: see above
                   i_queue.queue_data_pfx, i_queue.queue_cur_table, v_columns);
    get diagnostics v_rows = row_count;
    -- Retries and replays wait while a batch with their event is open, so they follow the event.
    execute format(  -- quoted: see above
        $sql$
        with kept as materialized (
            select k.ev_id, s.sub_id, s.sub_consumer
            from %s_kept k
            join pgque.subscription_base s
              on s.sub_queue = $1 and coalesce(k.ev_owner, s.sub_id) = s.sub_id
        ), retried as (
            update pgque.retry_queue r set ev_txid = pg_current_xact_id()
            from kept k where r.ev_owner = k.sub_id and r.ev_id = k.ev_id
        )
        update pgque.dead_letter d set ev_txid = pg_current_xact_id()
        from kept k
        where d.dl_queue_id = $1 and d.dl_consumer_id = k.sub_consumer and d.ev_id = k.ev_id
        $sql$, i_queue.queue_data_pfx) using i_queue.queue_id;
    execute format('drop table %s_kept', i_queue.queue_data_pfx);  -- quoted: see above
    return v_rows;
end;
$$;

-- Returns whether a row's xmin is the given transaction or a later one. The two are less than 2^31
-- apart.
create or replace function pgque.is_written_since(i_xmin xid, i_txid xid8)
returns boolean
language plpgsql immutable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (i_xmin::text::bigint - i_txid::text::bigint) & 4294967295 < 2147483648;
end;
$$;

-- Gives each queue a single tick, in which this transaction is still in progress, and moves every
-- consumer to it.
-- locks: held by the caller. writes: tick_log, tick_request, position_log, log_rotation, queue.
create or replace function pgque.renumber_positions()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_ticks  pgque.tick_log[];
    v_sub    pgque.subscription;
begin
    v_ticks := array(
        select row(q.queue_id, q.tick_id + 1, clock_timestamp(), pgque.tick_snapshot(),
                   q.tick_event_seq, l.half, true)::pgque.tick_log
        from pgque.queue_progress q
        join pgque.log l on l.log_name = 'tick');
    truncate pgque.tick_log;
    insert into pgque.tick_log select (unnest(v_ticks)).*;

    for v_sub in select s.* from pgque.subscription s order by s.sub_id loop
        v_sub.sub_last_tick := case when v_sub.sub_main is null then
            (select t.tick_id from pgque.tick t where t.tick_queue = v_sub.sub_queue) end;
        v_sub.sub_batch := null;
        v_sub.sub_next_tick := null;
        v_sub.lease_ttl := null;
        perform pgque.append_position(v_sub);
    end loop;
    update pgque.log_rotation set is_copied = false;
    delete from pgque.snapshot_wait;  -- for transactions of another cluster
    delete from pgque.rotation_floor;
    update pgque.queue q
    set queue_first_tick = t.tick_id,
        queue_switch_step1 = pg_current_xact_id()::text::bigint,
        queue_switch_step2 = pg_current_xact_id()::text::bigint,
        queue_switch_time = clock_timestamp()
    from pgque.tick t
    where t.tick_queue = q.queue_id;
    insert into pgque.tick_request (queue_id) select q.queue_id from pgque.queue q;
end;
$$;
