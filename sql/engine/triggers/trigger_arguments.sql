-- Parses the arguments of CREATE TRIGGER: the queue, then flags and name=value in any order.
-- `fields` has an expression, or null, for each of ev_type, ev_data, ev_extra1 to 4. Nothing is
-- cached between rows: one argument is the common case, and then the loop does nothing.
create or replace function pgque.trigger_arguments(
    i_trigger text, i_args text[],
    out queue text, out skip boolean, out backup boolean, out deny boolean,
    out ignored text[], out key text[], out condition text, out fields text[])
language plpgsql immutable
as $$
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
        perform pgque.refuse_trigger(i_trigger, 'names no queue',
                                     'The first argument of CREATE TRIGGER is the queue''s name.');
    end if;
    skip := false;
    backup := false;
    deny := false;
    ignored := '{}';
    fields := array_fill(null::text, array[6]);

    foreach v_arg in array i_args[1:] loop
        v_name := btrim(split_part(v_arg, '=', 1));
        v_value := btrim(substr(v_arg, strpos(v_arg, '=') + 1));
        case
            when v_arg in ('SKIP', 'skip') then skip := true;
            when v_arg = 'backup' then backup := true;
            when v_arg = 'deny' then deny := true;
            when strpos(v_arg, '=') = 0 or v_value = '' or v_name = any (v_seen)
                 or v_name <> all (array['ignore', 'pkey', 'when'] || c_fields) then
                perform pgque.refuse_trigger(
                    i_trigger,
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

-- Returns the SQL that computes an event's fields from a row ($1); $2 holds the fields without an
-- expression. The SQL returns no row if the condition is not true. Returns null if there is nothing
-- to compute. The expressions are SQL that the table's owner wrote in CREATE TRIGGER.
create or replace function pgque.trigger_expressions(i_condition text, i_fields text[])
returns text
language plpgsql immutable
as $$
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

-- Raises an error about a trigger's definition.
create or replace function pgque.refuse_trigger(i_trigger text, i_what text, i_hint text)
returns void
language plpgsql immutable
as $$
begin
    raise exception using
        errcode = 'PQ005',
        message = format('trigger %s %s', i_trigger, i_what),
        hint = i_hint;
end;
$$;

-- Raises an error about a change of a row that cannot become an event.
create or replace function pgque.refuse_change(i_trigger text, i_what text, i_hint text)
returns void
language plpgsql immutable
as $$
begin
    raise exception using
        errcode = 'PQ014',
        message = format('trigger %s refuses the change: %s', i_trigger, i_what),
        hint = i_hint;
end;
$$;
