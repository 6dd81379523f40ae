-- Trigger of capture(): each statement that changes the table sends an event for each changed row
-- (docs/capture.md). The role that changes the table needs no right on the queue: this runs as the schema's
-- owner, and only creating the trigger needs EXECUTE. So it reads only the table's transition tables,
-- because a query of the table runs code of the table's owner, such as the expressions of an index
-- (docs/decisions/0016-capture-as-the-owner.md). The arguments are the queue, the table as events name
-- it, and 'append' for a table without a key. Its settings are all settings that change how a type prints;
-- other code that prints values gets them from capture_settings(). `pgque_row.*` is the row even if a column
-- of the table is named pgque_row.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.capture_change()
returns trigger
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set bytea_output = 'hex'
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
    c_depth    constant text := format('pgque.depth_%s', c_table::oid);
    c_within   constant integer := coalesce(nullif(current_setting(c_depth, true), ''), '0')::integer;
    c_events   constant text := 'select %L, row_to_json(pgque_row.*)::text, $1 '
                                'from (select %s from %s) pgque_row';
    v_columns  text;
    v_key      text[];
    v_now      text;
    v_gone     text;
    v_written  text;
begin
    if format('%I.%I', tg_table_schema, tg_table_name) <> tg_argv[1] and pgque.has_left(c_table, tg_relid, tg_name) then
        return null;  -- a detached partition, or one below it
    elsif tg_op = 'TRUNCATE' then
        perform pgque.capture_truncate(tg_argv[0], tg_argv[1], tg_relid, tg_name, tg_when);
        return null;
    end if;
    -- Otherwise the name of a transition table could be another role's view, whose code would run.
    if tg_level <> 'STATEMENT' or not exists (
        select from pg_trigger t
        where t.tgrelid = tg_relid and t.tgname = tg_name and (tg_op = 'INSERT' or t.tgoldtable = 'old_table')
          and (tg_op = 'DELETE' or t.tgnewtable = 'new_table')) then
        perform pgque.refuse_value('trigger "%s" was not made by capture()', tg_name,
                                   'Drop it, and call pgque.capture.');
    end if;
    v_columns := pgque.capture_columns(tg_relid);
    if tg_nargs < 3 and (tg_op = 'UPDATE' or c_within > pg_trigger_depth()) then
        v_key := pgque.key_of_table(c_table);
    end if;
    if v_key is not null and c_within > pg_trigger_depth() then
        -- Triggers changed rows of this table within the statement, and their events already exist. So
        -- the rows' current values count, not those that the statement gave them.
        v_now := pgque.captured_rows(tg_relid, tg_name);
        v_gone := format(c_events, 'delete', v_columns, case tg_op
            when 'INSERT' then 'new_table' when 'DELETE' then 'old_table'
            else '(select * from old_table union all select * from new_table) o' end) || format(' where not exists (select from string_to_table($2, chr(10)) n where %s)', (
                select string_agg(format('n::json ->> %1$L = row_to_json(pgque_row.*) ->> %1$L '
                                         'collate "C"', name), ' and ') from unnest(v_key) name));
        v_written := 'select ''update'', n, $1 from string_to_table($2, chr(10)) n';
    else
        if tg_op <> 'INSERT' then
            -- It is unknown, and does not matter, which old row became which new row.
            v_gone := format(c_events, 'delete', v_columns, concat('old_table o', pgque.capture_condition(tg_relid, v_key)));
        end if;
        if tg_op <> 'DELETE' then
            v_written := format(c_events, lower(tg_op), v_columns, 'new_table');
        end if;
    end if;
    execute format('insert into %s (ev_type, ev_data, ev_extra1) %s', coalesce(  -- quoted: above
        (select format('%s_%s', q.queue_data_pfx, q.queue_cur_table) from pgque.queue q
         where q.queue_name = tg_argv[0] and not q.queue_disable_insert),
        pgque.current_event_table(tg_argv[0])), concat_ws(' union all ', v_gone, v_written))
    using tg_argv[1], v_now;
    if pg_trigger_depth() > greatest(1, c_within) then
        perform set_config(c_depth, pg_trigger_depth()::text, true);
    end if;
    return null;
end;
$$;

-- Returns whether a trigger of capture() was made for a partition whose relation now belongs to another
-- table: only the whole table has a trigger after TRUNCATE with the same arguments.
create or replace function pgque.has_left(i_table oid, i_relid oid, i_trigger name)
returns boolean
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return exists (
        select from pg_trigger t
        join pg_trigger p on (p.tgrelid, p.tgfoid, p.tgargs) = (t.tgrelid, t.tgfoid, t.tgargs)
             and p.tgtype & 34 = 34
        where t.tgrelid = i_relid and t.tgname = i_trigger and not exists (
            select from pg_trigger w
            where (w.tgrelid, w.tgfoid, w.tgargs) = (i_table, t.tgfoid, t.tgargs) and w.tgtype & 34 = 32));
end;
$$;

-- Trigger of capture() that fires before capture_change(). If triggers changed the table within the
-- statement, it passes on the statement's rows as they are now, one per line in pgque.rows; and the rows
-- of a partition that is truncated alone. It reads the table with the rights of the role that changes it,
-- which may have none on this schema, so it calls no function of it.
create or replace function pgque.capture_rows()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp set bytea_output = 'hex'
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
    c_within   constant text := current_setting(format('pgque.depth_%s', c_table::oid), true);
    v_from     text;
    v_columns  text;
    v_rows     text;
begin
    if tg_op = 'TRUNCATE' then
        v_from := case when current_setting('pgque.truncated', true) is distinct from c_table::oid::text
                       then tg_relid::regclass::text end;
    elsif coalesce(nullif(c_within, ''), '0')::integer > pg_trigger_depth() then
        -- Rows with a key that prints like one of these, through an index of the key if there may be one.
        select format('%s n where exists (select from %s o where %s)', c_table, case tg_op
            when 'INSERT' then 'new_table' when 'DELETE' then 'old_table'
            else '(select * from old_table union all select * from new_table)' end, string_agg(
                format(case when t.oid < 16384 then 'n.%1$I = o.%1$I and ' else '' end
                       || 'concat(n.%1$I) = concat(o.%1$I) collate "C"', a.attname), ' and '))
        into v_from
        from (select i.* from pg_index i
              where i.indrelid = c_table and (i.indisprimary or i.indisreplident) and i.indisvalid
              order by i.indisprimary desc limit 1) i
        join pg_attribute a on a.attrelid = i.indrelid
             and a.attnum = any ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
        join pg_type t on t.oid = a.atttypid
        having count(*) > 0;
    end if;
    if v_from is null then
        return null;
    end if;
    -- The same expressions as in capture_columns().
    select string_agg(case
        when t.typoutput in ('int2out'::regproc, 'int4out'::regproc, 'int8out'::regproc,
                             'boolout'::regproc, 'textout'::regproc, 'varcharout'::regproc,
                             'timestamp_out'::regproc, 'timestamptz_out'::regproc)
        then quote_ident(a.attname)
        else format('case num_nulls(%1$I) when 0 then concat(%1$I) end as %1$I', a.attname)
        end, ', ' order by a.attnum)
    into v_columns
    from pg_attribute a
    join pg_type t on t.oid = a.atttypid
    where a.attrelid = tg_relid and a.attnum > 0 and not a.attisdropped and a.attgenerated <> 'v';
    execute format('select string_agg(row_to_json(pgque_row.*)::text, chr(10)) '  -- quoted: above
                   'from (select %s from %s) pgque_row', v_columns, v_from) into v_rows;
    perform set_config('pgque.rows', coalesce(v_rows, ''), true);
    return null;
end;
$$;

-- Returns what the trigger capture_rows() has passed to a trigger of the same statement. It has to fire
-- just before; otherwise any session could have set it.
create or replace function pgque.captured_rows(i_relid oid, i_trigger name)
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if not exists (
        select from pg_trigger t
        join pg_trigger r on r.tgrelid = t.tgrelid and r.tgtype = t.tgtype
             and r.tgenabled = t.tgenabled and r.tgname < t.tgname
        where t.tgrelid = i_relid and t.tgname = i_trigger
          and r.tgfoid = 'pgque.capture_rows()'::regprocedure) then
        perform pgque.refuse_value('trigger "%s" lacks the trigger that reads the rows', i_trigger,
                                   'Call pgque.capture again, as the owner of the table.');
    end if;
    return current_setting('pgque.rows', true);
end;
$$;

-- The condition that an old row o of a statement has no new row n with its key, as printed: 1.0 and 1.00
-- are equal, but a replica finds a row by its printed key. Texts are compared where operators of the
-- key's type could be user-defined. Null without a key.
create or replace function pgque.capture_condition(i_relid oid, i_key text[])
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return (
        select format(' where not exists (select from new_table n where %s)', string_agg(format(
            case when p.proname ~ '^(int[248]|bool|text|varchar|uuid|date|timestamp(tz)?)_?out$'
                      and p.pronamespace = 'pg_catalog'::regnamespace
                      and c.collisdeterministic is not false
            then 'o.%1$I = n.%1$I' else 'concat(o.%1$I) = concat(n.%1$I) collate "C"' end,
            a.attname), ' and '))
        from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        join pg_proc p on p.oid = t.typoutput  -- a domain has the function of its underlying type
        left join pg_collation c on c.oid = a.attcollation
        where a.attrelid = i_relid and a.attnum > 0 and a.attname = any (i_key)
        having count(*) > 0);
end;
$$;

-- The statements that make a session print values as the events of captured tables do.
create or replace function pgque.capture_settings()
returns setof text
language sql stable set search_path = pgque, pg_catalog, pg_temp
as $$
    -- A search_path is stored as a list of quoted names.
    select format('set %s = %s', found[1], case found[1] when 'search_path' then found[2]
                                           else quote_literal(found[2]) end)
    from pg_proc p, unnest(p.proconfig) setting, regexp_match(setting, '^([^=]+)=(.*)$') found
    where p.oid = 'pgque.capture_change()'::regprocedure;
$$;

-- Sends the event for a TRUNCATE. If a single partition is truncated, it sends a delete for each row; the
-- trigger of the whole table, which fires first, shows which it is. If other triggers changed rows of the
-- table, such as one that inserts after each TRUNCATE, their events may come first: then replicas copy.
create or replace function pgque.capture_truncate(
    i_queue text, i_table text, i_relid oid, i_trigger name, i_when text)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_root  constant oid := coalesce(pg_partition_root(i_relid), i_relid);
begin
    if c_root = i_relid and i_when = 'BEFORE' then
        perform set_config('pgque.truncated', c_root::text, true);
    elsif c_root = i_relid then
        perform set_config('pgque.truncated', '', true);
        perform pgque.insert_event(i_queue, 'truncate', '{}', i_table, null, null, null);
        if coalesce(nullif(current_setting(format('pgque.depth_%s', c_root), true), ''), '0')::integer
           > pg_trigger_depth() then
            perform pgque.insert_event(i_queue, 'copy', '{}', i_table, null, null, null);
        end if;
    elsif current_setting('pgque.truncated', true) is distinct from c_root::text then
        execute format('insert into %s (ev_type, ev_data, ev_extra1) '  -- quoted: current_event_table
                       'select ''delete'', n, $1 from string_to_table($2, chr(10)) n',
                       pgque.current_event_table(i_queue))
            using i_table, pgque.captured_rows(i_relid, i_trigger);
    end if;
end;
$$;
