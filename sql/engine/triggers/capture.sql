-- Creates statement triggers on a table and its partitions, which send each change to a queue from the
-- commit of this transaction on. Called again, it adds new partitions, uses the table's new name,
-- and leaves correct triggers unchanged, without a lock. Returns how many tables have the
-- triggers. The role needs pgque_writer and the right to create triggers on the table. With i_append, the
-- table has no key, because rows are only inserted: an update becomes deletes of all old rows and updates
-- of all new ones. It waits for writers of the table for at most a second, ten times. If a relay captures
-- for the queue, it adds the table to the publication instead. The insert without rows makes drop_queue()
-- wait for this transaction, and then see the triggers.
-- locks: the tables (SHARE ROW EXCLUSIVE). writes: their triggers.
create or replace function pgque.capture(
    i_table regclass, i_queue text, i_append boolean default false)
returns integer
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_attempts  constant integer := 10;
    c_timeout   constant text := current_setting('lock_timeout');
    v_name      constant text := 'pgque_capture_' || left(md5(i_queue), 12);  -- a queue's may be too long
    v_new       record;
begin
    execute format('insert into %s (ev_type) select null where false',  -- quoted: by the function
                   pgque.current_event_table(i_queue));
    perform pgque.current_event_table(i_queue), pgque.check_captured(i_table, i_queue, i_append);  -- it may be dropped now
    if exists (select from pgque.relays(i_queue)) then
        return pgque.publish_table(i_table, i_queue, true);
    end if;
    for v_attempt in 1 .. c_attempts loop
        begin
            perform set_config('lock_timeout', '1s', true);
            for v_new in
                select n.made from pgque.capture_relations(i_table) r join pg_class c on c.oid = r
                join (values
                    ('insert', 'after', 'referencing new table as new_table ', null),
                    ('update', 'after',
                     'referencing old table as old_table new table as new_table ', null),
                    ('delete', 'after', 'referencing old table as old_table ', null),
                    ('truncate', 'after', '', false),
                    ('truncate', 'before', '', true)
                ) f (event, firing, transition, of_parts)
                on case f.of_parts when true then c.relispartition or c.relkind = 'p'
                                   when false then not c.relispartition else true end
                join (values
                    ('', format('change(%L, %L%s)', i_queue, pgque.capture_table(i_table),
                                case when i_append then ', ''append''' end)),
                    ('a_', 'rows()')  -- named so that it fires first
                ) k (prefix, called)
                on k.prefix = '' or case when event = 'truncate' then c.relispartition
                                         else not i_append end
                cross join lateral (select format(
                    'trigger %I %s %s on %s %sfor each statement execute function capture_%s',
                    concat_ws('_', v_name, prefix || firing, event), firing, event, pgque.capture_table(r),
                    transition, called) as made) n
                where not exists (
                    select from pg_trigger t where t.tgrelid = r and t.tgenabled = 'O' and starts_with(t.tgname, v_name)
                      and lower(pg_get_triggerdef(t.oid)) = lower('create ' || n.made))
                order by c.relispartition, c.relkind = 'r', c.oid  -- as writers lock them
            loop
                execute format('create or replace %s', v_new.made);  -- quoted: above
            end loop;
            perform set_config('lock_timeout', c_timeout, true);
            exit;
        exception when lock_not_available then
            if v_attempt = c_attempts then
                raise exception 'table % could not be captured: its writers did not end within % '
                                'attempts of a second', i_table, c_attempts
                    using errcode = 'lock_not_available',
                          hint = 'Call it again when no long transaction holds a lock on it (pg_locks).';
            end if;
            perform pg_sleep(0.2 * v_attempt);
        end;
    end loop;
    perform pgque.note_captured(i_table, v_name || '_after_insert');
    return (select count(*) from pgque.capture_relations(i_table));
end;
$$;

-- Records in the comment of a trigger since when a table is captured. Only the table's owner may do it.
-- locks: none that lasts. writes: the comment.
create or replace function pgque.note_captured(i_table regclass, i_trigger text)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if exists (
        select from pg_class c join pg_trigger t on t.tgrelid = c.oid
        where c.oid = i_table and t.tgname = i_trigger and pg_has_role(c.relowner, 'usage')
          and obj_description(t.oid, 'pg_trigger') is null) then
        execute format('comment on trigger %I on %s is %L', i_trigger, i_table,  -- quoted: regclass
            to_char(now() at time zone 'UTC', '"captured since "YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    end if;
end;
$$;

-- Ends what capture() began. Changes committed before stay in the queue. Returns how many tables had the
-- triggers, and warns about consumers that replicate the table. Only the table's owner may call it. Like
-- capture(), it waits for at most a second, ten times, because later sessions wait behind it. It locks
-- the table before its partitions, as writers do.
-- locks: the tables (ACCESS EXCLUSIVE). writes: their triggers.
create or replace function pgque.uncapture(i_table regclass, i_queue text)
returns integer
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_attempts  constant integer := 10;
    c_timeout   constant text := current_setting('lock_timeout');
    v_name      constant text := 'pgque_capture_' || left(md5(i_queue), 12);
    v_trigger   record;
    v_tables    regclass[] := array(
        select distinct t.tgrelid::regclass
        from pgque.capture_relations(i_table) r join pg_trigger t on t.tgrelid = r
        where starts_with(t.tgname, v_name));
    v_needing   constant text[] := pgque.replicated_by(i_queue, pgque.capture_table(i_table));
begin
    for v_attempt in 1 .. case when v_tables <> '{}' then c_attempts else 0 end loop
        begin
            perform set_config('lock_timeout', '1s', true);
            execute format('lock table %s in access exclusive mode', i_table);  -- quoted: regclass
            perform set_config('lock_timeout', c_timeout, true);
            exit;
        exception when lock_not_available then
            if v_attempt = c_attempts then
                raise exception 'table % is still captured: sessions that use it did not end within % '
                                'attempts of a second', i_table, c_attempts
                    using errcode = 'lock_not_available',
                          hint = 'Call it again when no long transaction holds a lock on it (pg_locks).';
            end if;
            perform pg_sleep(0.2 * v_attempt);
        end;
    end loop;
    for v_trigger in
        select t.tgrelid::regclass as captured, t.tgname
        from pgque.capture_relations(i_table) r join pg_trigger t on t.tgrelid = r
        where starts_with(t.tgname, v_name)
    loop
        execute format('drop trigger %I on %s',  -- quoted: regclass
                       v_trigger.tgname, v_trigger.captured);
    end loop;
    if v_needing is not null and v_tables <> '{}' then
        raise warning 'table % is replicated by consumers of queue "%": %', i_table, i_queue,
                      array_to_string(v_needing, ', ')
            using hint = 'Their runs fail until it is captured again, or not among their tables.';
    end if;
    if exists (select from pgque.relays(i_queue)) then
        return pgque.publish_table(i_table, i_queue, false);
    end if;
    return cardinality(v_tables);
end;
$$;

-- Checks that a table can be captured.
create or replace function pgque.check_captured(i_table regclass, i_queue text, i_append boolean)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp set quote_all_identifiers = off
as $$
declare
    v_class  pg_class;
    v_why    text := pgque.capture_gap(i_table, i_queue);
begin
    select c.* into v_class from pg_class c where c.oid = i_table;
    v_why := case
        when v_why is not null then v_why
        when v_class.oid is null then 'is not a table'
        when v_class.relkind not in ('r', 'p') then 'is not a table: only tables and partitioned tables '
            'have changes to capture'
        when v_class.relpersistence = 't' then 'is temporary'
        when v_class.relispartition then format(
            'is a partition: capture the whole table %s', pg_partition_root(i_table))
        when v_class.relnamespace::regnamespace::text in ('pgque', 'pg_catalog', 'information_schema')
            then 'belongs to the system'
        when (pgque.key_of_table(i_table) is not null) = i_append then case
            when i_append then 'has a key: capture it without append'
            else 'has no key: give it a primary key, or a replica identity by a unique index; or capture '
                 'it with append, if rows are only inserted' end
    end;
    if v_why is not null then
        raise exception 'table % cannot be captured: it %', coalesce(i_table::text, 'null'), v_why
            using errcode = 'PQ005', hint = 'docs/capture.md lists what can be captured.';
    end if;
end;
$$;

-- Returns why a queue's capture does not see all changes of a table; null if it does. Without a
-- queue, capture from the WAL is assumed.
create or replace function pgque.capture_gap(i_table regclass, i_queue text)
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return coalesce(
        (select format('inherits %s, whose statements change its rows unseen: capture that table, or '
                       'end it by alter table %s no inherit %1$s', i.inhparent::regclass, i_table)
         from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhrelid = i_table and not c.relispartition limit 1),
        (select format('has the partition %s, a foreign table, whose changes no trigger sees: leave it '
                       'out by alter table %s detach partition %1$s', r, i_table)
         from pgque.capture_relations(i_table) r
         join pg_class c on c.oid = r and c.relkind = 'f' limit 1),
        (select format('gets rows of the subscription %s, whose worker fires no triggers of '
                       'statements: capture it from the WAL, or in the database that publishes it', s.subname)
         from pgque.capture_relations(i_table) r
         join pg_subscription_rel l on l.srrelid = r
         join pg_subscription s on s.oid = l.srsubid
         where i_queue is not null
           and not exists (select from pgque.relays() q where q.queue_name = i_queue) limit 1));
end;
$$;

-- Returns the columns of a table's primary key, or of its replica identity; null if it has neither.
create or replace function pgque.key_of_table(i_table regclass)
returns text[]
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    -- Not in SQL, whose functions are planned at each call before PostgreSQL 18.
    return (
        select array_agg(a.attname::text order by k.nr)
        from (select i.* from pg_index i
              where i.indrelid = i_table and (i.indisprimary or i.indisreplident) and i.indisvalid
              order by i.indisprimary desc limit 1) i,
             unnest(i.indkey::smallint[]) with ordinality k (attnum, nr)
        join pg_attribute a on a.attnum = k.attnum and a.attrelid = i_table
        where k.nr <= i.indnkeyatts);
end;
$$;

-- Returns the columns of a table as events have them: integers, booleans, times and texts unchanged,
-- because JSON holds them exactly, and everything else as the text that PostgreSQL prints.
create or replace function pgque.capture_columns(i_relid oid)
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return (
        select string_agg(case
            -- A domain prints with the function of its underlying type.
            when t.typoutput in ('int2out'::regproc, 'int4out'::regproc, 'int8out'::regproc,
                                 'boolout'::regproc, 'textout'::regproc, 'varcharout'::regproc,
                                 'timestamp_out'::regproc, 'timestamptz_out'::regproc)
            then quote_ident(a.attname)
            -- concat, because a cast to text differs from what is printed: char, inet.
            else format('case num_nulls(%1$I) when 0 then concat(%1$I) end as %1$I', a.attname)
            end, ', ' order by a.attnum)
        from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        where a.attrelid = i_relid and a.attnum > 0 and not a.attisdropped
          and a.attgenerated <> 'v');
end;
$$;

-- Returns a table and all its partitions, except those that are being detached, which queries of the table
-- leave out. pg_partition_tree() would lock them before the table itself.
create or replace function pgque.capture_relations(i_table regclass)
returns setof regclass
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    with recursive part as (
        select i_table as relation
        union
        select i.inhrelid::regclass
        from part p
        join pg_inherits i on i.inhparent = p.relation
             and to_jsonb(i) ->> 'inhdetachpending' is distinct from 'true'
        join pg_class c on c.oid = i.inhrelid and c.relispartition
    )
    select relation from part;
$$;

-- Returns the name of a table in events: with its schema, quoted where needed.
create or replace function pgque.capture_table(i_table regclass)
returns text
language sql stable set search_path = pgque, pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
    select format('%I.%I', n.nspname, c.relname)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = i_table;
$$;

-- Returns the same for a name as in SQL, even if the table no longer exists.
create or replace function pgque.captured_name(i_name text)
returns text
language sql stable set search_path = pgque, pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
    select case when cardinality(p) = 2 then format('%I.%I', p[1], p[2])
                else pgque.capture_table(to_regclass(i_name)) end
    from parse_ident(i_name) p;
$$;
