-- Returns the columns of a table in the order of its rows, without dropped ones, and the primary
-- key's columns in the order of the key.
create or replace function pgque.table_columns(
    i_table oid, out names text[], out types oid[], out generated text[], out key text[])
language plpgsql stable
as $$
declare
    v_numbers int2[];
    v_key     int2[];
    v_number  int2;
begin
    select array_agg(a.attnum), coalesce(array_agg(a.attname::text), '{}'),
           array_agg(a.atttypid), array_agg(a.attgenerated::text)
    into v_numbers, names, types, generated
    from (select * from pg_attribute
          where attrelid = i_table and attnum > 0 and not attisdropped
          order by attnum) a;

    key := '{}';
    select c.conkey into v_key from pg_constraint c where c.conrelid = i_table and c.contype = 'p';
    if found then
        foreach v_number in array v_key loop
            key := key || names[array_position(v_numbers, v_number)];
        end loop;
    end if;
end;
$$;

-- Returns the columns' values from a row's text form, each as its type prints it. It makes one pass
-- and builds no SQL from names. In the text form, a value with a comma, quote, backslash or space
-- is in quotes, with quotes and backslashes doubled; an empty value without quotes is null.
create or replace function pgque.split_row(i_row text)
returns text[]
language plpgsql immutable strict
as $$
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

-- Describes the change that fired a trigger: the trigger's arguments, whether the change makes an
-- event, and the row's columns with old and new values. `sent` tells which columns the event shows.
-- The settings make the texts the same in every session: ISO dates, and floats to the last bit.
create or replace function pgque.describe_change(
    i_name text, i_relid oid, i_schema text, i_table text, i_args text[],
    i_when text, i_level text, i_op text, i_stored boolean, i_old record, i_new record,
    out queue text, out is_event boolean, out skip boolean, out backup boolean,
    out table_name text, out key text[], out names text[], out types oid[], out sent boolean[],
    out old_values text[], out new_values text[], out expressions text)
language plpgsql
set datestyle = 'ISO, YMD'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $$
declare
    v_trigger text := format('"%s" on table %s.%s', i_name, i_schema, i_table);
    v_args    record;
    v_columns record;
begin
    is_event := false;
    skip := false;
    if current_setting('session_replication_role') = 'local' then
        return;
    end if;
    v_args := pgque.trigger_arguments(v_trigger, i_args);
    table_name := format('%s.%s', i_schema, i_table);
    if v_args.deny then
        perform pgque.refuse_change(
            v_trigger, format('%s is denied', i_op),
            'The trigger has the argument deny: change the table where its data comes from.');
    end if;
    perform pgque.check_firing(v_trigger, i_when, i_level, i_op, v_args.skip,
                               v_args.backup or v_args.condition is not null
                               or num_nonnulls(variadic v_args.fields) > 0);
    queue := v_args.queue;
    skip := v_args.skip;
    backup := v_args.backup;
    v_columns := pgque.table_columns(i_relid);
    names := v_columns.names;
    types := v_columns.types;
    key := coalesce(v_args.key, v_columns.key);
    perform pgque.check_columns(v_trigger, names, v_args.key || v_args.ignored);
    if i_op = 'TRUNCATE' then
        is_event := true;
        return;
    end if;

    select array_agg(name <> all (v_args.ignored) and not starts_with(name, '_pgq_ev_')
                     and generated <> 'v' and (i_stored or generated = '') order by nr)
    into sent
    from unnest(names, v_columns.generated) with ordinality c (name, generated, nr);
    old_values := pgque.split_row(i_old::text);
    new_values := pgque.split_row(i_new::text);
    expressions := pgque.trigger_expressions(
        v_args.condition, pgque.add_field_columns(v_trigger, names, v_args.fields));
    is_event := i_op = 'INSERT'
                or pgque.check_key(v_trigger, i_op, key, names, old_values, new_values)
                   and (i_op = 'DELETE'
                        or pgque.is_change_sent(names, sent, v_args.ignored, old_values, new_values));
end;
$$;
