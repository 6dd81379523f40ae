-- Trigger: each change of a row becomes an event with the row as JSON. Arguments and formats are in
-- docs/triggers.md. It runs with the rights and the search_path of the role that changes the row.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.jsontriga()
returns trigger
language plpgsql as $$
declare
    c pg_catalog.record;
begin
    -- Here, because a role without any right on the schema cannot call a function of it.
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = pg_catalog.format(
                'role "%s" may not send the changes of table %s.%s: trigger "%s" sends them to a '
                'queue', current_user, tg_table_schema, tg_table_name, tg_name),
            hint = pg_catalog.format(
                'The role that changes the table needs pgque_writer: grant pgque_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('json', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- The same with the row url-encoded.
create or replace function pgque.logutriga()
returns trigger
language plpgsql as $$
declare
    c pg_catalog.record;
begin
    -- Here, because a role without any right on the schema cannot call a function of it.
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = pg_catalog.format(
                'role "%s" may not send the changes of table %s.%s: trigger "%s" sends them to a '
                'queue', current_user, tg_table_schema, tg_table_name, tg_name),
            hint = pg_catalog.format(
                'The role that changes the table needs pgque_writer: grant pgque_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('url', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- The same with a fragment of SQL, which its consumer completes.
create or replace function pgque.sqltriga()
returns trigger
language plpgsql as $$
declare
    c pg_catalog.record;
begin
    -- Here, because a role without any right on the schema cannot call a function of it.
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = pg_catalog.format(
                'role "%s" may not send the changes of table %s.%s: trigger "%s" sends them to a '
                'queue', current_user, tg_table_schema, tg_table_name, tg_name),
            hint = pg_catalog.format(
                'The role that changes the table needs pgque_writer: grant pgque_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('sql', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- Sends the event of a change, unless the trigger's arguments say otherwise. is_last says that the
-- trigger returns no row. The expressions are SQL that the table's owner wrote in CREATE TRIGGER. They
-- run with the rights and the search_path of the role that changes the row, so no search_path is pinned
-- here and all our names are qualified.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send_change(
    i_format text, i_name text, i_relid oid, i_schema text, i_table text, i_args text[],
    i_when text, i_level text, i_op text, i_old record, i_new record,
    out is_sent boolean, out is_last boolean)
language plpgsql as $$
declare
    c         pg_catalog.record;
    v_fields  pg_catalog.text[];
begin
    c := pgque.describe_change(i_format, i_name, i_relid, i_schema, i_table, i_args, i_when, i_level,
                               i_op, i_old, i_new);
    v_fields := c.fields;
    if c.expressions is not null then
        execute c.expressions into v_fields using coalesce(i_new, i_old), c.fields;
    end if;
    is_sent := v_fields is not null;
    is_last := c.skip or i_when operator(pg_catalog.=) 'AFTER';
    if is_sent then
        perform pgque.insert_event(c.queue, v_fields[1], v_fields[2], v_fields[3], v_fields[4],
                                   v_fields[5], v_fields[6]);
    end if;
end;
$$;

-- Describes the event of a change: its queue, its fields (ev_type, ev_data, ev_extra1 to 4), and the
-- expressions that replace some of them. Without fields there is no event. The settings make the texts
-- the same in every session: ISO dates, and floats to the last bit.
create or replace function pgque.describe_change(
    i_format text, i_name text, i_relid oid, i_schema text, i_table text, i_args text[],
    i_when text, i_level text, i_op text, i_old record, i_new record,
    out queue text, out skip boolean, out fields text[], out expressions text)
language plpgsql set search_path = pgque, pg_catalog, pg_temp set datestyle = 'ISO, YMD'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $$
declare
    v_trigger  text := format('"%s" on table %s.%s', i_name, i_schema, i_table);
    v_args     record;
    t          record;  -- the table's columns
    v_sent     boolean[];
    v_old      text[] := pgque.split_row(i_old::text);
    v_new      text[] := pgque.split_row(i_new::text);
begin
    skip := false;
    if current_setting('session_replication_role') = 'local' then
        return;
    end if;
    v_args := pgque.read_arguments(v_trigger, i_args);
    if v_args.flags <> '{}' or i_level <> 'ROW' then
        perform pgque.check_trigger(v_trigger, v_args.flags, v_args.condition, v_args.fields, i_when,
                                    i_level, i_op);
    end if;
    queue := v_args.queue;
    skip := 'skip' = any (v_args.flags);
    t := pgque.table_columns(i_relid);
    t.key := coalesce(v_args.key, t.key);
    -- A misspelled name would send a column that was meant to be ignored, or leave one out of the key.
    if not (v_args.key || v_args.ignored) <@ t.names then
        perform pgque.refuse_trigger(
            false, v_trigger, format('names the column %L, which the table does not have', (
                select name from unnest(v_args.key || v_args.ignored) name
                where name <> all (t.names) limit 1)),
            concat('Its columns are: ', array_to_string(t.names, ', '), '. Drop and create it again.'));
    end if;
    if i_op <> 'TRUNCATE' then
        -- A generated column cannot be written, and has no value before the change.
        select array_agg(name <> all (v_args.ignored) and not starts_with(name, '_pgq_ev_')
                         and generated <> 'v'
                         and (generated = '' or i_format <> 'sql' and i_when <> 'BEFORE') order by nr)
        into v_sent
        from unnest(t.names, t.generated) with ordinality c (name, generated, nr);
        if i_op <> 'INSERT' then
            perform pgque.check_change_key(v_trigger, i_op, t.key, t.names, v_old, v_new);
        end if;
        -- As in PgQ, an update of only ignored columns and fields sends no event; an empty update does.
        if i_op = 'UPDATE' and (v_args.ignored <> '{}' or i_format = 'sql') and not (
               select bool_or(sent) is not false
               from unnest(t.names, v_sent, v_old, v_new) c (name, sent, was, becomes)
               where was is distinct from becomes
                 and (sent or name = any (v_args.ignored) or starts_with(name, '_pgq_ev_'))) then
            return;
        end if;
        expressions := pgque.trigger_expressions(v_args.condition, v_args.fields);
    end if;
    fields := pgque.fill_fields(v_trigger, t.names, coalesce(v_new, v_old), i_op, array[
        pgque.change_type(i_format, i_op, i_schema, i_table, t.key),
        case when i_format = 'sql'
             then pgque.change_fragment(i_op, t.names, v_sent, t.key, v_old, v_new)
             else pgque.row_as_text(i_format, t.names, t.types, v_sent, coalesce(v_new, v_old)) end,
        format('%s.%s', i_schema, i_table),
        case when i_op = 'UPDATE' and 'backup' = any (v_args.flags)
             then pgque.row_as_text(i_format, t.names, t.types, v_sent, v_old) end,
        null, null]);
end;
$$;

-- Returns the columns of a table in the order of its rows, without dropped ones, and the primary key's
-- columns in the order of the key.
create or replace function pgque.table_columns(
    i_table oid, out names text[], out types oid[], out generated text[], out key text[])
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_numbers int2[];
begin
    select array_agg(a.attnum), coalesce(array_agg(a.attname::text), '{}'),
           array_agg(a.atttypid), array_agg(a.attgenerated::text)
    into v_numbers, names, types, generated
    from (select * from pg_attribute
          where attrelid = i_table and attnum > 0 and not attisdropped
          order by attnum) a;
    key := array(select names[array_position(v_numbers, number)]
                 from pg_constraint c, unnest(c.conkey) with ordinality k (number, nr)
                 where c.conrelid = i_table and c.contype = 'p'
                 order by nr);
end;
$$;

-- Returns the columns' values from a row's text form, each as its type prints it. It makes one pass and
-- builds no SQL from names. In the text form, a value with a comma, quote, backslash or space is in
-- quotes, with quotes and backslashes doubled; an empty value without quotes is null.
create or replace function pgque.split_row(i_row text)
returns text[]
language plpgsql immutable strict set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if strpos(i_row, '"') = 0 then
        return string_to_array(substr(i_row, 2, length(i_row) - 2), ',', '');
    end if;
    return (
        select array_agg(case
            when part[1] = ',' then null
            when part[1] like '"%' then
                replace(replace(substr(part[1], 2, length(part[1]) - 3), '""', '"'), e'\\\\', e'\\')
            else left(part[1], -1) end order by nr)
        from regexp_matches(substr(i_row, 2, length(i_row) - 2) || ',',
                            '(?:"(?:[^"]|"")*"|[^,"]+)?,', 'g') with ordinality m (part, nr));
end;
$$;
