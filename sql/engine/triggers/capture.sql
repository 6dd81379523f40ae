-- Trigger of capture(): each statement that changes the table makes an event for each row that it
-- changed (docs/capture.md). It runs with the rights of whoever changes the table. The arguments are
-- the queue, the table as events name it, and 'append' for one without a key. Its settings are all that
-- change how a type prints; whatever else prints values takes them from capture_settings().
-- `pgque_row.*` is the row even where a column of the table is named pgque_row.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.capture_change()
returns trigger
set bytea_output = 'hex'
set extra_float_digits = 1
set quote_all_identifiers = off
set intervalstyle = 'postgres'
set datestyle = 'iso, ymd'
set timezone = 'UTC'
set lc_monetary = 'C'
set row_security = off
as $$
declare
    c_table    constant regclass := coalesce(pg_partition_root(tg_relid), tg_relid);
    c_appends  constant boolean := tg_nargs > 2;
    c_depth    constant text := format('%s:%s;', lpad(pg_trigger_depth()::text, 3, '0'),
                                       hashtext(tg_argv[1]));
    c_events   constant text := 'select %L, row_to_json(pgque_row.*)::text, $1 '
                                'from (select %s from %s) pgque_row';
    v_is_same  text;  -- the condition that two rows o and n have equal keys
    v_rows     text;
    v_gone     text;
    v_written  text := case when tg_op <> 'DELETE' then 'new_table' end;
    v_type     text := lower(tg_op);
    v_columns  text;
begin
    if not pg_has_role('pgque_writer', 'usage') then
        raise exception 'role "%" may not send the changes of table % to queue "%"', current_user,
                        tg_argv[1], tg_argv[0]
            using errcode = 'insufficient_privilege',
                  hint = format('Whoever changes it needs: grant pgque_writer to %I;',
                                current_user);
    end if;
    if tg_op = 'TRUNCATE' then
        perform pgque.capture_truncate(tg_argv[0], tg_argv[1], tg_relid, tg_when);
        return null;
    end if;
    if not c_appends and coalesce(current_setting('pgque.changed_within', true), '') <> ''
       and pgque.is_changed_within(c_depth) then
        -- Triggers changed rows of this table within the statement, and their events are there
        -- already. So what counts is what the rows are now, and not what the statement made them.
        v_is_same := pgque.capture_condition(c_table, false);
        v_rows := case tg_op when 'INSERT' then 'new_table' when 'DELETE' then 'old_table'
                             else '(select * from old_table union all select * from new_table)' end;
        v_gone := format('%s o where not exists (select from %s n where %s)',
                         v_rows, c_table, pgque.capture_condition(c_table, true));
        v_written := format('%s n where exists (select from %s o where %s)',
                            c_table, v_rows, v_is_same);
        v_type := 'update';
    elsif tg_op = 'UPDATE' and not c_appends then
        -- Which old row became which new row is unknown, and does not matter.
        v_gone := format('old_table o where not exists (select from new_table n where %s)',
                         pgque.capture_condition(c_table, true));
    elsif tg_op <> 'INSERT' then
        v_gone := 'old_table o';
    end if;
    v_columns := pgque.capture_columns(tg_relid);
    execute format(
        'insert into %s (ev_type, ev_data, ev_extra1) %s',  -- quoted: below
        pgque.current_event_table(tg_argv[0]),
        concat_ws(' union all ',  -- in this order
            case when v_gone is not null then
                format(c_events, 'delete', v_columns, v_gone) end,  -- quoted: above
            case when v_written is not null then
                format(c_events, v_type, v_columns, v_written) end))  -- quoted: above
    using tg_argv[1];
    if pg_trigger_depth() > 1 then
        perform set_config('pgque.changed_within', replace(coalesce(
            current_setting('pgque.changed_within', true), ''), c_depth, '') || c_depth, true);
    end if;
    return null;
end;
$$;

-- The condition that the rows o and n of a table have equal keys, as the key is now, and print them
-- equally if that is asked: 1.0 and 1.00 are equal, and a replica finds a row by what is printed. The key
-- of a partition is that of the whole table. Refuses the change of a table that has lost its key.
create or replace function pgque.capture_condition(i_relid oid, i_printed boolean)
returns text stable
as $$
declare
    v_key  constant text[] := pgque.key_of_table(i_relid);
begin
    if v_key is null then
        raise exception 'table % is captured and has no key any more, so this change cannot be sent',
                        i_relid::regclass
            using errcode = 'PQ014',
                  hint = 'Give it a primary key, or end the capture: select pgque.uncapture(...).';
    end if;
    return (
        select string_agg(format(
            -- In arrays if the type is an extension's, whose operators the search_path has not.
            case when p.pronamespace = 'pg_catalog'::regnamespace then 'o.%1$I = n.%1$I'
            else 'array[o.%1$I] = array[n.%1$I]' end
            || case when i_printed
                    and (p.proname !~ '^(int[248]|bool|text|varchar|uuid|date|timestamp(tz)?)_?out$'
                         or not c.collisdeterministic)
            then ' and concat(o.%1$I) = concat(n.%1$I) collate "C"' else '' end, a.attname), ' and ')
        from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        join pg_proc p on p.oid = t.typoutput  -- that of a domain is of the type it is made of
        left join pg_collation c on c.oid = a.attcollation
        where a.attrelid = i_relid and a.attnum > 0 and a.attname = any (v_key));
end;
$$;

-- The statements that have a session print values as the events of captured tables have them.
create or replace function pgque.capture_settings()
returns setof text
language sql stable
as $$
    -- A search_path is stored as a list of quoted names.
    select format('set %s = %s', found[1], case found[1] when 'search_path' then found[2]
                                           else quote_literal(found[2]) end)
    from pg_proc p, unnest(p.proconfig) setting, regexp_match(setting, '^([^=]+)=(.*)$') found
    where p.oid = 'pgque.capture_change()'::regprocedure;
$$;

-- Whether, in this transaction, a statement at a greater depth of triggers changed the same table.
create or replace function pgque.is_changed_within(i_depth text)
returns boolean
language sql stable
as $$
    select exists (
        select from string_to_array(current_setting('pgque.changed_within', true), ';') list,
                    unnest(list) mark
        where split_part(mark, ':', 2) = rtrim(split_part(i_depth, ':', 2), ';')
          and split_part(mark, ':', 1) > split_part(i_depth, ':', 1));
$$;

-- The event of a TRUNCATE. A partition that is truncated by itself makes a delete of each row: the
-- trigger of the whole table, which fires first, says whether it is.
create or replace function pgque.capture_truncate(
    i_queue text, i_table text, i_relid oid, i_when text)
returns void
as $$
declare
    c_whole  constant boolean := not (select c.relispartition from pg_class c
                                      where c.oid = i_relid);
begin
    if c_whole and i_when = 'BEFORE' then
        perform set_config('pgque.truncated', i_relid::text, true);
    elsif c_whole then
        perform set_config('pgque.truncated', '', true);
        perform pgque.insert_event(i_queue, 'truncate', '{}', i_table, null, null, null);
    elsif current_setting('pgque.truncated', true) is distinct from pg_partition_root(i_relid)::oid::text
    then
        execute format(
            'insert into %s (ev_type, ev_data, ev_extra1) '  -- quoted: current_event_table
            'select ''delete'', row_to_json(pgque_row.*)::text, $1 from (select %s from %s) pgque_row',  -- quoted: both
            pgque.current_event_table(i_queue), pgque.capture_columns(i_relid), i_relid::regclass)
            using i_table;
    end if;
end;
$$;

-- Has each change of a table sent to a queue, from the commit of this transaction on: by statement
-- triggers on the table and its partitions. Called again, it adds partitions that came later and
-- follows a new name. Returns how many tables have the triggers. The role needs pgque_writer and the
-- right to create triggers on the table. With i_append, it has no key, because rows are only inserted:
-- an update is the deletes of all old rows and the updates of all new ones. It waits for writers of the
-- table for a second at most, ten
-- times.
-- locks: the tables (SHARE ROW EXCLUSIVE). writes: their triggers.
create or replace function pgque.capture(
    i_table regclass, i_queue text, i_append boolean default false)
returns integer
as $$
declare
    c_attempts  constant integer := 10;
    c_timeout   constant text := current_setting('lock_timeout');
    v_name      constant text := 'pgque_capture_' || left(md5(i_queue), 12);  -- a queue's may be too long
    v_new       record;
    v_tables    regclass[];
begin
    perform pgque.current_event_table(i_queue);
    perform pgque.check_captured(i_table, i_append);
    for v_attempt in 1 .. c_attempts loop
        begin
            perform set_config('lock_timeout', '1s', true);
            v_tables := array[]::regclass[];
            for v_new in
                select r as captured, f.*
                from pgque.capture_relations(i_table) r
                join pg_class c on c.oid = r
                join (values
                    ('insert', 'after', 'referencing new table as new_table', null),
                    ('update', 'after',
                     'referencing old table as old_table new table as new_table', null),
                    ('delete', 'after', 'referencing old table as old_table', null),
                    ('truncate', 'after', '', false),
                    ('truncate', 'before', '', true)
                ) f (event, firing, transition, of_parts)
                on f.of_parts is null
                   or case when f.of_parts then c.relispartition or c.relkind = 'p'
                           else not c.relispartition end
            loop
                execute format(
                    'create or replace trigger %I %s %s on %s %s for each statement '  -- quoted: above
                    'execute function pgque.capture_change(%L, %L%s)',  -- quoted: below
                    format('%s_%s_%s', v_name, v_new.firing, v_new.event), v_new.firing, v_new.event,
                    v_new.captured, v_new.transition, i_queue, pgque.capture_table(i_table),
                    case when i_append then ', ''append''' end);
                v_tables := v_tables || v_new.captured;
            end loop;
            perform set_config('lock_timeout', c_timeout, true);
            exit;
        exception when lock_not_available then
            if v_attempt = c_attempts then
                raise exception 'table % could not be captured: its writers did not end within % '
                                'attempts of a second', i_table, c_attempts
                    using errcode = 'lock_not_available',
                          hint = 'Call it again when the table has no long transaction; pg_locks '
                                 'has them.';
            end if;
            perform pg_sleep(0.2 * v_attempt);
        end;
    end loop;
    for v_new in  -- only the owner may comment
        select t.tgname from pg_class c join pg_trigger t on t.tgrelid = c.oid
        where c.oid = i_table and t.tgname = v_name || '_after_insert'
          and pg_has_role(c.relowner, 'usage') and obj_description(t.oid, 'pg_trigger') is null
    loop
        execute format('comment on trigger %I on %s is %L', v_new.tgname, i_table,  -- quoted: regclass
            to_char(now() at time zone 'UTC', '"captured since "YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    end loop;
    return (select count(distinct t) from unnest(v_tables) t);
end;
$$;

-- Ends what capture() began. Changes that are committed before stay in the queue. Returns how many
-- tables had the triggers, and warns of consumers that replicate the table. It needs its owner.
-- locks: the tables (ACCESS EXCLUSIVE). writes: their triggers.
create or replace function pgque.uncapture(i_table regclass, i_queue text)
returns integer
as $$
declare
    v_name     constant text := 'pgque_capture_' || left(md5(i_queue), 12);
    v_trigger  record;
    v_tables   regclass[] := array[]::regclass[];
    v_needing  constant text[] := pgque.replicated_by(i_queue, pgque.capture_table(i_table));
begin
    for v_trigger in
        select t.tgrelid::regclass as captured, t.tgname
        from pgque.capture_relations(i_table) r join pg_trigger t on t.tgrelid = r
        where starts_with(t.tgname, v_name)
    loop
        execute format('drop trigger %I on %s',  -- quoted: regclass
                       v_trigger.tgname, v_trigger.captured);
        v_tables := v_tables || v_trigger.captured;
    end loop;
    if v_needing is not null and v_tables <> '{}' then
        raise warning 'table % is replicated by consumers of queue "%": %', i_table, i_queue,
                      array_to_string(v_needing, ', ')
            using hint = 'Their runs fail until it is captured again, or not among their tables.';
    end if;
    return (select count(distinct t) from unnest(v_tables) t);
end;
$$;

-- Checks that a table can be captured.
create or replace function pgque.check_captured(i_table regclass, i_append boolean)
returns void stable
set quote_all_identifiers = off
as $$
declare
    v_class  pg_class;
    v_why    text := pgque.capture_gap(i_table);
begin
    select c.* into v_class from pg_class c where c.oid = i_table;
    v_why := case
        when v_why is not null then v_why
        when v_class.oid is null then 'is no table'
        when v_class.relkind not in ('r', 'p') then 'is no table: only tables and partitioned tables '
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

-- Why triggers of statements do not see all changes of a table; null if they do.
create or replace function pgque.capture_gap(i_table regclass)
returns text stable
as $$
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
                       'statements: capture it in the database that publishes it', s.subname)
         from pgque.capture_relations(i_table) r
         join pg_subscription_rel l on l.srrelid = r
         join pg_subscription s on s.oid = l.srsubid limit 1));
end;
$$;

-- The columns of a table's primary key, or else of its replica identity; null without either.
create or replace function pgque.key_of_table(i_table regclass)
returns text[] stable
as $$
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

-- The columns of a table as events have them: integers, booleans, times and texts as they are, which
-- JSON holds exactly, and everything else as the text that PostgreSQL prints.
create or replace function pgque.capture_columns(i_relid oid)
returns text stable
as $$
begin
    return (
        select string_agg(case
            -- A domain prints by the function of the type that it is made of.
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

-- A table and its partitions at all levels.
create or replace function pgque.capture_relations(i_table regclass)
returns setof regclass
language sql stable
as $$
    select i_table
    union
    select p.relid from pg_partition_tree(i_table) p;
$$;

-- The name of a table in events: with its schema, quoted where needed.
create or replace function pgque.capture_table(i_table regclass)
returns text
language sql stable
set quote_all_identifiers = off
as $$
    select format('%I.%I', n.nspname, c.relname)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = i_table;
$$;
