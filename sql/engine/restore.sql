-- Adoption after pg_restore. The transaction ids in restored ticks and events come from the old
-- cluster and cannot be compared with those of the new one. So nothing is ticked, read or truncated
-- until adopt_restored_database has written the unread events again. See docs/restore.md.

-- Refuses to work in a restored database that is not adopted yet: transaction ids of two clusters
-- cannot be compared.
-- locks: none. writes: nothing.
create or replace function pgque.check_adopted()
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    if exists (select from pgque.config c, pgque.origin o where c.origin_id <> o.origin_id) then
        raise exception using
            errcode = 'PQ018',
            message = 'this database was restored from a dump and is not adopted yet',
            hint = 'Let an administrator run: select pgque.adopt_restored_database();';
    end if;
end;
$$;

-- Writes the unfinished events of all consumers again as new events. A consumer's next batch holds
-- all of its events, with their ids, times and retry counts. Open batches are canceled and leases
-- end. Returns how many rows it wrote, and 0 if there is nothing to adopt.
-- locks: ticks, positions and the event tables, against everybody but readers of events.
-- writes: all of them; config, lineage_seq, batch_id_seq.
create or replace function pgque.adopt_restored_database()
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_origin  pgque.origin;
    v_queue   pgque.queue;
    v_rows    bigint := 0;
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

    perform pgque.check_logs_complete();
    for v_queue in select q.* from pgque.queue q order by q.queue_id loop
        v_rows := v_rows + pgque.renumber_events(v_queue, v_origin.first_txid);
    end loop;
    perform pgque.renumber_positions();
    update pgque.config set origin_id = v_origin.origin_id;
    perform pgque.renew_lineage();
    return v_rows;
end;
$$;

-- Refuses to adopt a dump that lacks ticks or positions. Such a dump waited for a lock longer than
-- the snapshot patience and found a log already emptied. If its consumers were taken as finished,
-- their events would be lost.
-- locks: none. writes: nothing.
create or replace function pgque.check_logs_complete()
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_missing text;
begin
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
        raise exception using
            errcode = 'PQ018',
            message = format('this dump does not say where the consumers of these queues stand: %s',
                             v_missing),
            hint = 'It waited for a lock for longer than pgque.set_snapshot_patience allows. Nothing was changed. '
                   'Restore another dump.';
    end if;
end;
$$;

-- What each consumer of a queue has not finished: all events that its last tick did not see and,
-- for the open batch of a cooperative member, those between the batch's two ticks. For a queue
-- without consumers, these are the events after its last tick.
create or replace view pgque.unfinished as
select s.sub_queue as queue_id, coalesce(s.sub_main, s.sub_id) as owner_id,
       prev.tick_snapshot as after_snapshot,
       case when s.sub_main is not null then cur.tick_snapshot end as until_snapshot
from pgque.subscription s
join pgque.tick prev on prev.tick_queue = s.sub_queue and prev.tick_id = s.sub_last_tick
left join pgque.tick cur on cur.tick_queue = s.sub_queue and cur.tick_id = s.sub_next_tick
union all
select q.queue_id, null, last_tick.tick_snapshot, null
from pgque.queue q
cross join lateral (
    select t.tick_snapshot from pgque.tick t
    where t.tick_queue = q.queue_id
    order by t.tick_id desc
    limit 1
) last_tick
where not exists (select from pgque.subscription_base s where s.sub_queue = q.queue_id);

-- Writes the unfinished events of a queue again, under this transaction's id. An event that all
-- consumers need stays one row; otherwise each consumer that needs it gets its own row. The
-- transaction that wrote a row (xmin, which has 32 bits of the id) shows whether it was sent after
-- the restore; all consumers need such rows.
-- locks: the event tables, exclusively at the end. writes: the event tables.
create or replace function pgque.renumber_events(i_queue pgque.queue, i_first_txid xid8)
returns bigint
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_kept     text := format('pgque.event_%s_kept', i_queue.queue_id);
    v_columns  constant text := 'ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, '
                                'ev_extra1, ev_extra2, ev_extra3, ev_extra4';
    v_rows     bigint;
begin
    for v_nr in 0..i_queue.queue_ntables - 1 loop
        execute format('lock table pgque.%I in access exclusive mode',
                       format('event_%s_%s', i_queue.queue_id, v_nr));
    end loop;

    execute format(  -- quoted: made of the queue's number, a number, and column names
        'create table %s as '
        'with owner as (select u.owner_id, array_agg(u.after_snapshot) as after_snapshots, '
        '                      array_agg(u.until_snapshot) as until_snapshots '
        '               from pgque.unfinished u where u.queue_id = %s group by u.owner_id), '
        'need as (select e.*, needed.owners from %s e cross join lateral ('
        '  select array_agg(o.owner_id) as owners from owner o '
        '  where (e.ev_owner is null or e.ev_owner = o.owner_id) '
        '    and (pgque.is_written_since(e.xmin, %L) or exists ('
        '      select from unnest(o.after_snapshots, o.until_snapshots) s(a, u) '
        '      where not pg_visible_in_snapshot(e.ev_txid, s.a) '
        '        and coalesce(pg_visible_in_snapshot(e.ev_txid, s.u), true)))) needed '
        '  where needed.owners is not null) '
        'select ev_id, ev_time, coalesce(ev_owner, one.owner_id) as ev_owner, ev_retry, ev_type, '
        '       ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        'from need n cross join lateral (select null::integer where cardinality(n.owners) = '
        '  (select count(*) from owner) union all select x from unnest(n.owners) x '
        '  where cardinality(n.owners) < (select count(*) from owner)) one(owner_id)',
        v_kept, i_queue.queue_id, i_queue.queue_data_pfx, i_first_txid);
    for v_nr in 0..i_queue.queue_ntables - 1 loop
        execute format('truncate pgque.%I', format('event_%s_%s', i_queue.queue_id, v_nr));
    end loop;
    execute format('insert into %s_%s (%s) select %s from %s order by ev_id',  -- quoted: as above
                   i_queue.queue_data_pfx, i_queue.queue_cur_table, v_columns, v_columns, v_kept);
    get diagnostics v_rows = row_count;
    execute format('drop table %s', v_kept);  -- quoted: as above
    return v_rows;
end;
$$;

-- Returns whether a row's xmin is the given transaction or a later one. The two are less than 2^31
-- apart.
-- locks: none. writes: nothing.
create or replace function pgque.is_written_since(i_xmin xid, i_txid xid8)
returns boolean
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
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
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_ticks      pgque.tick_log[];
    v_positions  pgque.position_log[];
begin
    v_ticks := array(
        select row(q.queue_id, t.tick_id + 1, clock_timestamp(), pgque.tick_snapshot(),
                   t.tick_event_seq, t.half)::pgque.tick_log
        from pgque.queue q
        cross join lateral (
            select * from pgque.tick l
            where l.tick_queue = q.queue_id
            order by l.tick_id desc
            limit 1
        ) t);
    truncate pgque.tick_log;
    insert into pgque.tick_log select (unnest(v_ticks)).*;

    v_positions := array(
        select p
        from pgque.subscription_base s
        cross join lateral (
            select * from pgque.position_log l
            where l.sub_id = s.sub_id
            order by l.pos_seq desc
            limit 1
        ) p);
    truncate pgque.position_log;
    insert into pgque.position_log_0 (
        sub_id, pos_seq, sub_last_tick, sub_active, lease_epoch, next_half)
    select p.sub_id, p.pos_seq + 1, case when s.sub_main is null then t.tick_id end,
           clock_timestamp(), p.lease_epoch, 0
    from unnest(v_positions) p
    join pgque.subscription_base s on s.sub_id = p.sub_id
    join pgque.tick t on t.tick_queue = s.sub_queue;
    update pgque.log l set half = 0 where l.log_name = 'position';
    update pgque.log_rotation
    set left_at = null, left_by = null, marked_at = null, holders = null, is_copied = false;

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
