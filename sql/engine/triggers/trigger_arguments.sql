-- Parses the arguments of CREATE TRIGGER: the queue, then flags and name=value in any order. `fields`
-- has an expression, or null, for each of ev_type, ev_data, ev_extra1 to 4. Nothing is cached between
-- rows: one argument is the common case, and then the loop does nothing.
create or replace function pgque.read_arguments(
    i_trigger text, i_args text[],
    out queue text, out flags text[], out ignored text[], out key text[], out condition text,
    out fields text[])
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_fields constant text[] := array['ev_type', 'ev_data', 'ev_extra1', 'ev_extra2',
                                     'ev_extra3', 'ev_extra4'];
    v_arg   text;
    v_name  text;
    v_value text;
    v_seen  text[] := array[]::text[];
begin
    queue := i_args[0];
    if coalesce(queue, '') = '' then
        perform pgque.refuse_trigger(false, i_trigger, 'names no queue',
                                     'The first argument of CREATE TRIGGER is the queue''s name.');
    end if;
    flags := '{}';
    ignored := '{}';
    fields := array_fill(null::text, array[6]);
    foreach v_arg in array i_args[1:] loop
        v_name := btrim(split_part(v_arg, '=', 1));
        v_value := btrim(substr(v_arg, strpos(v_arg, '=') + 1));
        case
            when v_arg = any ('{SKIP,skip,backup,deny}') then flags := flags || lower(v_arg);
            when strpos(v_arg, '=') = 0 or v_value = '' or v_name = any (v_seen)
                 or v_name <> all (array['ignore', 'pkey', 'when'] || c_fields) then
                perform pgque.refuse_trigger(
                    false, i_trigger,
                    case when v_name = any (v_seen) then format('has the argument %L twice', v_name)
                    else format('has an unknown or empty argument: %L', v_arg) end,
                    'Arguments after the queue are SKIP, backup, deny, ignore=column,..., '
                    'pkey=column,..., when=EXPR, ev_type=EXPR, ev_data=EXPR, '
                    'ev_extra1=EXPR to ev_extra4=EXPR, each once.');
            when v_name = 'ignore' then ignored := regexp_split_to_array(v_value, e'\\s*,\\s*');
            when v_name = 'pkey' then key := regexp_split_to_array(v_value, e'\\s*,\\s*');
            when v_name = 'when' then condition := v_value;
            else fields[array_position(c_fields, v_name)] := v_value;
        end case;
        v_seen := v_seen || v_name;
    end loop;
end;
$$;

-- Returns an event's fields; the table's own columns _pgq_ev_type, _pgq_ev_extra1 and so on replace
-- others, as in PgQ. The values are as the types print them, not as a cast to text gives them.
create or replace function pgque.fill_fields(
    i_trigger text, i_names text[], i_values text[], i_op text, i_fields text[])
returns text[]
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    c_columns constant text[] := array['_pgq_ev_type', '_pgq_ev_data', '_pgq_ev_extra1',
                                      '_pgq_ev_extra2', '_pgq_ev_extra3', '_pgq_ev_extra4'];
    v_name    text;
begin
    for v_name in
        select name from unnest(i_names) name
        where starts_with(name, '_pgq_ev_') and i_op <> 'TRUNCATE'
    loop
        if v_name <> all (c_columns) then
            perform pgque.refuse_trigger(
                false, i_trigger,
                format('finds the column %L, which is not a field of an event', v_name),
                format('Rename the column; the fields are: %s.', array_to_string(c_columns, ', ')));
        end if;
        i_fields[array_position(c_columns, v_name)] := i_values[array_position(i_names, v_name)];
    end loop;
    return i_fields;
end;
$$;

-- Returns the SQL that computes an event's fields from a row ($1); $2 holds the fields without an
-- expression. The SQL returns no row if the condition is not true. Returns null if there is nothing to
-- compute.
create or replace function pgque.trigger_expressions(i_condition text, i_fields text[])
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_condition is null and num_nonnulls(variadic i_fields) = 0 then
        return null;
    end if;
    -- The line breaks end a comment at the end of an expression. OFFSET keeps the planner from
    -- computing expressions when the condition is false.
    return (
        select format(e'select array[%s]::pg_catalog.text[] '
                      'from (select ($1).* offset 0) r where (%s\n)',
                      string_agg(case when field is null then format('$2[%s]', nr)
                                 else format(e'(%s\n)::pg_catalog.text', field) end,
                                 ', ' order by nr),
                      coalesce(i_condition, 'true'))
        from unnest(i_fields) with ordinality f (field, nr));
end;
$$;

-- Refuses a trigger that cannot do what its arguments say, and a change that is denied.
create or replace function pgque.check_trigger(
    i_trigger text, i_flags text[], i_condition text, i_fields text[], i_when text, i_level text,
    i_op text)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if 'deny' = any (i_flags) then
        perform pgque.refuse_trigger(
            true, i_trigger, format('%s is denied', i_op),
            'The trigger has the argument deny: change the table where its data comes from.');
    elsif i_op <> 'TRUNCATE' and i_level <> 'ROW' then
        perform pgque.refuse_trigger(
            false, i_trigger, 'fires once per statement and so sees no row',
            'Create it with: for each row.');
    elsif 'skip' = any (i_flags) and (i_when = 'AFTER' or i_op = 'TRUNCATE') then
        perform pgque.refuse_trigger(
            false, i_trigger, format('cannot skip: it fires %s %s', lower(i_when), i_op),
            'SKIP works in triggers before insert, update or delete, for each row.');
    elsif i_op = 'TRUNCATE' and ('backup' = any (i_flags) or i_condition is not null
                                 or num_nonnulls(variadic i_fields) > 0) then
        perform pgque.refuse_trigger(
            false, i_trigger, 'has arguments that need a row, and TRUNCATE has none',
            'Create a trigger of its own for truncate, without backup and EXPR arguments.');
    end if;
end;
$$;

-- Checks the key of an update or delete: the table must have one, and an update must not change it.
-- Consumers that apply the change elsewhere find the row by its key.
create or replace function pgque.check_change_key(
    i_trigger text, i_op text, i_key text[], i_names text[], i_old text[], i_new text[])
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_changed text;
begin
    if i_key = '{}' then
        perform pgque.refuse_trigger(
            true, i_trigger, format('%s on a table without a primary key', i_op),
            'Add a primary key, or name the columns that identify a row: pkey=column,...');
    elsif i_op = 'UPDATE' then
        select name into v_changed
        from unnest(i_names, i_old, i_new) c (name, was, becomes)
        where was is distinct from becomes and name = any (i_key)
        limit 1;
        if found then
            perform pgque.refuse_trigger(
                true, i_trigger, format('it updates "%s", a column of the key', v_changed),
                'Delete the row and insert it with the new key.');
        end if;
    end if;
end;
$$;

-- Raises an error about a change that cannot become an event, or about the trigger's definition.
create or replace function pgque.refuse_trigger(
    i_is_change boolean, i_trigger text, i_what text, i_hint text)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = case when i_is_change then 'PQ014' else 'PQ005' end,
        message = format('trigger %s %s%s', i_trigger,
                         case when i_is_change then 'refuses the change: ' end, i_what),
        hint = i_hint;
end;
$$;
