-- Replicas: the changes of captured tables, applied to a copy of each (docs/replicas.md).

-- Records that a consumer has copied a table as a snapshot shows it. It is called in the transaction of
-- the ack, so it counts only if the attempt that copied is the one that was acked. From then on, the
-- consumer skips the changes that the snapshot contains. With the snapshot of the last copy, it records only
-- another shape, once the open batch has all events that were written under earlier ones; before that, only
-- which columns the replica has. i_doubt says why rows may differ from the table's from the open batch on,
-- until a comparison that begins later finds them equal, or another copy.
-- locks: none. writes: replica_table.
create or replace function pgque.set_replicated(
    i_queue text, i_consumer text, i_table text, i_copied pg_snapshot, i_shape text,
    i_doubt text default null)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub      pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_later    boolean := false;
begin
    if i_table is null or i_copied is null or i_shape is null then
        perform pgque.refuse_value('a copy needs a table, a snapshot and a shape', null,
                                   'Pass pg_current_snapshot() and pgque.table_facts(table, queue).');
    end if;
    if starts_with(i_shape, '{') and v_sub.sub_next_tick is not null then
        v_later := exists (
            select
            from pgque.find_tick(v_sub.sub_queue, v_sub.sub_next_tick) t,
                 jsonb_each_text(i_shape::jsonb -> 'writers') w
            -- A subtransaction looks ended in a snapshot in which its transaction is in progress.
            where w.value::xid8 >= pg_snapshot_xmin(t.tick_snapshot));
    end if;
    insert into pgque.replica_table as r (sub_id, table_name, incarnation, copied, shape)
    values (v_sub.sub_id, i_table, pgque.incarnation()::text, i_copied, i_shape)
    on conflict (sub_id, table_name) do update
    set incarnation = excluded.incarnation, copied = excluded.copied,
        shape = case when not v_later or r.copied::text <> i_copied::text then i_shape
                     when starts_with(r.shape, '{') then (r.shape::jsonb || jsonb_build_object(
                         'has', i_shape::jsonb -> 'columns'))::text
                     else r.shape end,
        doubt = case when r.copied::text = i_copied::text then r.doubt end;
    update pgque.replica_table r
    set doubt = case when strpos(r.doubt, i_doubt) > 0 then r.doubt else concat_ws('; ', r.doubt, i_doubt) end,
        doubt_tick = coalesce(v_sub.sub_next_tick, v_sub.sub_last_tick),
        doubted_at = case when r.doubt is null then clock_timestamp() else r.doubted_at end
    where r.sub_id = v_sub.sub_id and r.table_name = i_table and i_doubt is not null;
end;
$$;

-- Makes a consumer copy a table again, at its next batch or the next attempt at an open one. No events are
-- kept for the table until then, so an incomplete copy may start over.
-- locks: none. writes: replica_table, replica_apart.
create or replace function pgque.forget_replicated(i_queue text, i_consumer text, i_table text)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_table is null then
        perform pgque.refuse_value('no table was named', null,
                                   'pgque.replicated_tables() lists those that were copied.');
    end if;
    delete from pgque.replica_table r where r.sub_id = v_sub.sub_id and r.table_name = i_table;
    update pgque.replica_apart a set retry_at = clock_timestamp(), copying = null
    where a.sub_id = v_sub.sub_id and a.table_name = i_table;
end;
$$;

-- Records that a consumer's table is set apart from the batch after a tick on, or failed again; or how far
-- its copy in parts is; without a reason and a copy, that it is no longer set apart. It is called in the
-- transaction of the ack. After a failure, the pause before the next attempt grows from one minute to ten.
-- locks: none. writes: replica_apart.
create or replace function pgque.set_apart(
    i_queue text, i_consumer text, i_table text, i_tick bigint, i_reason text,
    i_copying text default null)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub     pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_failed  constant integer := (i_reason is not null)::int;
begin
    if i_table is null or i_tick is null or i_tick < 0 then
        perform pgque.refuse_value('a table that is set apart needs a name and a tick', null,
                                   'Pass the tick that begins the batch.');
    end if;
    if i_reason is null and i_copying is null then
        delete from pgque.replica_apart a where a.sub_id = v_sub.sub_id and a.table_name = i_table;
        return;
    end if;
    insert into pgque.replica_apart as a (sub_id, table_name, tick_id, reason, copying, attempts, retry_at)
    values (v_sub.sub_id, i_table, i_tick, coalesce(i_reason, ''), i_copying, v_failed,
            clock_timestamp() + v_failed * interval '1 minute')
    on conflict (sub_id, table_name) do update
    set tick_id = excluded.tick_id, reason = excluded.reason, copying = excluded.copying,
        attempts = v_failed * (a.attempts + 1),
        retry_at = clock_timestamp()
                   + v_failed * least(2 ^ least(a.attempts, 4), 10) * interval '1 minute';
end;
$$;

-- The tables of a consumer that are set apart. is_kept says whether the events after tick_id exist, is_due
-- whether the pause before the next attempt is over.
create or replace function pgque.tables_apart(
    i_queue text, i_consumer text,
    out table_name text, out tick_id bigint, out is_kept boolean, out is_due boolean, out reason text,
    out copying text)
returns setof record
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select a.table_name, a.tick_id, a.tick_id >= q.queue_first_tick, a.retry_at <= clock_timestamp(),
           a.reason, a.copying
    from pgque.find_subscription(i_queue, i_consumer) s
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.replica_apart a on a.sub_id = s.sub_id
    order by 1;
$$;

-- Returns whether a table that is set apart is due in an open batch, which then needs a run even if empty.
create or replace function pgque.has_table_due(i_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (select exists (select from pgque.find_batch(i_batch_id) s
                   join pgque.replica_apart a on a.sub_id = s.sub_id and a.retry_at <= clock_timestamp()));
end;
$$;

-- The tables that a consumer has copied, except in an earlier incarnation of the database, whose
-- transaction ids mean nothing here.
create or replace function pgque.replicated_tables(
    i_queue text, i_consumer text,
    out table_name text, out copied pg_snapshot, out shape text)
returns setof record
language sql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
    select r.table_name, r.copied, r.shape
    from pgque.find_subscription(i_queue, i_consumer) s
    join pgque.replica_table r on r.sub_id = s.sub_id
    where r.incarnation = pgque.incarnation()::text
    order by 1;
$$;

-- Returns the types that make up a type, including itself.
create or replace function pgque.types_within(i_type oid)
returns setof oid
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    with recursive kind as (
        select i_type as type
        union
        select part.type
        from kind k
        join pg_type t on t.oid = k.type
        cross join lateral (
            select t.typelem as type
            union all select t.typbasetype
            union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
            union all select a.atttypid from pg_attribute a
                      where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) part
        where part.type <> 0
    )
    select type from kind;
$$;

-- The columns of a table as its events have them, in order, with the underlying types of domains.
-- is_stable says for a key's column whether different values of its type print differently, and each
-- value always prints in the same way.
create or replace function pgque.source_columns(
    i_table regclass,
    out column_name text, out data_type text, out is_key boolean, out is_stable boolean,
    out description text)
returns setof record
language sql stable set search_path = pgque, pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
    with recursive part as (
        select a.attnum, a.attname, a.atttypid as type, a.atttypmod as modifier,
               a.attcollation, 0 as depth
        from pg_attribute a
        where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped and a.attgenerated <> 'v'
        union all
        select p.attnum, p.attname, t.typbasetype, t.typtypmod, p.attcollation, p.depth + 1
        from part p join pg_type t on t.oid = p.type
        where t.typtype = 'd'
    ),
    base as (select distinct on (p.attnum) p.* from part p order by p.attnum, p.depth desc)
    select b.attname::text, format_type(b.type, b.modifier), k.is_key,
           not k.is_key or coalesce(c.collisdeterministic, true) and not exists (
               select from pgque.types_within(b.type) w
               join pg_type t on t.oid = w
               where t.typtype = 'b' and t.typcategory <> 'A' and t.typname <> all (
                   '{bool,int2,int4,int8,numeric,money,text,varchar,bpchar,name,char,bytea,uuid,date,time,
                   timetz,timestamp,timestamptz,interval,oid,xid8,pg_lsn,inet,cidr,macaddr,macaddr8,bit,
                   varbit,jsonb,citext,ltree}')
                   -- Parts of a type have their own collations.
                   or exists (
                       select from pg_collation l
                       where not l.collisdeterministic and l.oid in (
                           select r.rngcollation from pg_range r where w in (r.rngtypid, r.rngmultitypid)
                           union all select a.attcollation from pg_attribute a
                                     where a.attrelid = t.typrelid and not a.attisdropped))),
           col_description(i_table, b.attnum)
    from base b
    cross join lateral (
        select b.attname::text = any (coalesce(pgque.key_of_table(i_table), '{}')) as is_key) k
    left join pg_collation c on c.oid = b.attcollation
    order by b.attnum;
$$;

-- Returns what earlier versions stored of a table at its last copy: a text that also changes with things that
-- table_facts does not contain. Null if there is no such table.
create or replace function pgque.table_shape(i_table regclass, i_queue text)
returns text
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    with kind as (
        select distinct w as type
        from (select distinct a.atttypid
              from pg_attribute a
              where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped) a,
             pgque.types_within(a.atttypid) w
    )
    select md5(concat_ws(E'\n',
        pgque.key_of_table(i_table)::text,
        (select c.oid from pg_constraint c where c.conrelid = i_table and c.contype = 'p'),
        (select string_agg(format('%s %s %s %s %s', a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin),
                           ',' order by a.attnum)
         from pg_attribute a
         where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped),
        (select string_agg(format('%s %s', c.oid, pg_relation_filenode(c.oid)), ',' order by c.oid)
         from pgque.capture_relations(i_table) r join pg_class c on c.oid = r),
        (select string_agg(format('%s %s', t.oid, t.xmin), ',' order by t.oid)
         from pgque.capture_relations(i_table) r join pg_trigger t on t.tgrelid = r
         where t.tgfoid = 'pgque.capture_change()'::regprocedure
           and starts_with(t.tgname, 'pgque_capture_' || left(md5(i_queue), 12))),
        (select string_agg(format('%s %L', e.oid, e.enumlabel), ',' order by e.oid)
         from kind k join pg_enum e on e.enumtypid = k.type),
        (select string_agg(format('%s %s %s', a.attrelid, a.attnum, a.xmin), ','
                           order by a.attrelid, a.attnum)
         from kind k
         join pg_type t on t.oid = k.type and t.typrelid <> 0
         join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0)))
    from pg_class where oid = i_table;
$$;

-- Returns the catalog's facts about a table that change without its triggers reporting it: its columns by
-- number, with comments and the underlying types of domains, and the transactions that wrote their
-- definitions last; what PostgreSQL reads in a column that a row lacks, as the JSON of events; whether
-- partitions have the columns in another order; the key; the relations with their files, which TRUNCATE and
-- VACUUM FULL also replace; the transactions that attached each partition, and those above it; the partitions
-- that nothing was ever written to; the triggers of capture() into this queue, with their relations, or the
-- publication; the labels of enums and the attributes of composite types in its values. Null if there is no
-- such table.
create or replace function pgque.table_facts(i_table regclass, i_queue text)
returns jsonb
language sql stable set search_path = pgque, pg_catalog, pg_temp set bytea_output = 'hex'
set extra_float_digits = 1
set quote_all_identifiers = off
set intervalstyle = 'postgres'
set datestyle = 'iso, ymd'
set timezone = 'UTC'
set lc_monetary = 'C'
as $$
    with attribute as (
        select a.*, s.next - (s.next - a.xmin::text::bigint) % 4294967296 as writer, t.typoutput in (
                   'int2out'::regproc, 'int4out'::regproc, 'int8out'::regproc, 'boolout'::regproc,
                   'textout'::regproc, 'varcharout'::regproc, 'timestamp_out'::regproc,
                   'timestamptz_out'::regproc) as is_plain  -- as in capture_columns()
        from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint) s (next), pg_attribute a
        left join pg_type t on t.oid = a.atttypid
        where a.attrelid = i_table and a.attnum > 0
    ),
    made as (
        select t.oid, t.typrelid
        from (select distinct w
              from (select distinct atttypid from attribute) a, pgque.types_within(a.atttypid) w) w (type)
        join pg_type t on t.oid = w.type and (t.typtype = 'e' or t.typrelid <> 0)
    ),
    trigger as (
        select t.oid, t.xmin, t.tgrelid
        from pgque.capture_relations(i_table) r join pg_trigger t on t.tgrelid = r
        where t.tgfoid = 'pgque.capture_change()'::regprocedure
          and starts_with(t.tgname, 'pgque_capture_' || left(md5(i_queue), 12))
    )
    select jsonb_build_object(
        'columns', (select jsonb_object_agg(a.attnum, jsonb_strip_nulls(jsonb_build_object(
                        'name', a.attname, 'comment', col_description(i_table, a.attnum), 'type', (
                            with recursive base as (
                                select a.atttypid as type, a.atttypmod as modifier
                                union all
                                select t.typbasetype, t.typtypmod
                                from base b join pg_type t on t.oid = b.type and t.typtype = 'd')
                            select format_type(b.type, b.modifier)
                            from base b join pg_type t on t.oid = b.type and t.typtype <> 'd'))))
                    from attribute a where not a.attisdropped and a.attgenerated <> 'v'),
        'writers', (select jsonb_object_agg(a.attnum, a.writer) from attribute a),
        'missing', (select jsonb_object_agg(m.attnum, m.found)
                    from (select a.attnum, jsonb_agg(distinct case
                                     when a.is_plain then (array_to_json(p.attmissingval) -> 0)::text
                                     else to_json(array_to_string(p.attmissingval, ''))::text end)
                          from pgque.capture_relations(i_table) r
                          -- Uses the index, because the number of relations is overestimated.
                          cross join lateral (select * from pg_attribute p
                                              where p.attrelid = r and p.atthasmissing offset 0) p
                          join attribute a using (attname)
                          group by 1) m (attnum, found)),
        'mixed', (select count(distinct (select array_agg(p.attname order by p.attnum)
                                         from pg_attribute p
                                         where p.attrelid = r and p.attnum > 0 and not p.attisdropped)) > 1
                  from pgque.capture_relations(i_table) r),
        'key', jsonb_build_array(pgque.key_of_table(i_table), (
                   select c.oid from pg_constraint c where c.conrelid = i_table and c.contype = 'p')),
        'files', (select jsonb_object_agg(r::oid, pg_relation_filenode(r))
                  from pgque.capture_relations(i_table) r),
        'attached', (with recursive part as (
                         select i_table::oid as relation, '' as since
                         union all
                         select i.inhrelid, concat_ws(' ', nullif(p.since, ''), i.xmin, (
                                    select 'detaching' where to_jsonb(i) ->> 'inhdetachpending' = 'true'))
                         from part p join pg_inherits i on i.inhparent = p.relation)
                     select jsonb_object_agg(p.relation, p.since) from part p where p.since <> ''),
        'unused', (select jsonb_agg(c.oid::text)
                   from pgque.capture_relations(i_table) r
                   join pg_class c on c.oid = r
                   where c.relkind = 'p' or c.reltuples = -1 and pg_relation_filenode(r) = c.oid
                                            and pg_relation_size(r) = 0),
        'placed', (select jsonb_object_agg(t.oid, t.tgrelid::text) from trigger t),
        'triggers', coalesce(
            (select t.facts from pgque.relayed_tables(i_queue) t where t.relation = i_table),
            (select jsonb_object_agg(t.oid, t.xmin::text) from trigger t)),
        'labels', (select jsonb_object_agg(e.oid, e.enumlabel)
                   from made m join pg_enum e on e.enumtypid = m.oid),
        'composites', (select jsonb_object_agg(m.oid, (
                           select jsonb_object_agg(a.attnum, a.xmin::text)
                           from pg_attribute a where a.attrelid = m.typrelid and a.attnum > 0))
                       from made m where m.typrelid <> 0))
    from pg_class where oid = i_table;
$$;

-- Makes a tick with the snapshot of this transaction, regardless of the queue's thresholds, so that the
-- rows that the transaction reads exactly match the tick's events. Returns the tick, or null if the
-- queue already has one with a newer snapshot: then try again in a new transaction.
-- locks: those of ticker(). writes: tick_request, and a tick.
create or replace function pgque.snapshot_tick(i_queue text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.find_queue(i_queue);
    if current_setting('transaction_isolation') = 'read committed' then
        perform pgque.refuse_value('queue "%s" cannot get a tick with a statement''s snapshot', i_queue,
                                   'Begin the transaction with ISOLATION LEVEL REPEATABLE READ.');
    end if;
    perform pgque.force_next_tick(i_queue);
    return pgque.ticker(i_queue);
end;
$$;

-- Records, in the transaction of a batch's ack, that its run left the replicas at i_tick, its end; or that
-- no run was needed, because the batch has no event after i_empty_after, its start.
-- locks: the consumer's row in replica_position. writes: replica_position.
create or replace function pgque.note_stored(
    i_queue text, i_consumer text, i_tick bigint, i_empty_after bigint default null)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
begin
    if i_tick is null or least(i_tick, i_empty_after) < 0 then
        perform pgque.refuse_value('a batch needs a tick', null, 'Pass the tick that ends it.');
    end if;
    if i_empty_after is not null then
        update pgque.replica_position r set empty_to = i_tick
        where r.sub_id = v_sub.sub_id and r.empty_to = i_empty_after;
        return;
    end if;
    insert into pgque.replica_position (sub_id, stored_tick, empty_to)
    values (v_sub.sub_id, i_tick, i_tick)
    on conflict (sub_id) do update set stored_tick = i_tick, empty_to = i_tick;
end;
$$;

-- Returns how far a consumer's replicas have come (schema/replica.sql); no row before a run has recorded it.
create or replace function pgque.stored_ticks(
    i_queue text, i_consumer text, out stored_tick bigint, out empty_to bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select r.stored_tick, r.empty_to
   from pgque.find_subscription(i_queue, i_consumer) s
   join pgque.replica_position r on r.sub_id = s.sub_id;
end;
$$;
