-- Refuses operations and arguments that a trigger of this kind does not support.
create or replace function pgque.check_firing(
    i_trigger text, i_when text, i_level text, i_op text, i_skip boolean, i_needs_row boolean)
returns void
language plpgsql immutable
as $$
begin
    if i_op <> 'TRUNCATE' and i_level <> 'ROW' then
        perform pgque.refuse_trigger(i_trigger, 'fires once a statement and so sees no row',
                                     'Create it with: for each row.');
    elsif i_skip and (i_when = 'AFTER' or i_op = 'TRUNCATE') then
        perform pgque.refuse_trigger(
            i_trigger, format('cannot skip: it fires %s %s', lower(i_when), i_op),
            'SKIP works in triggers before insert, update or delete, for each row.');
    elsif i_op = 'TRUNCATE' and i_needs_row then
        perform pgque.refuse_trigger(
            i_trigger, 'has arguments that need a row, and TRUNCATE has none',
            'Create a trigger of its own for truncate, without backup and EXPR arguments.');
    end if;
end;
$$;

-- Refuses names in pkey= and ignore= that are not columns. A misspelt name would send a column that
-- was meant to be ignored, or leave a column out of the key.
create or replace function pgque.check_columns(i_trigger text, i_names text[], i_named text[])
returns void
language plpgsql immutable
as $$
declare
    v_name text;
begin
    if i_named <@ i_names then
        return;
    end if;
    select name into v_name from unnest(i_named) name where name <> all (i_names) limit 1;
    perform pgque.refuse_trigger(
        i_trigger, format('names the column %L, which the table has not', v_name),
        format('Its columns are: %s. Drop the trigger and create it anew.',
               array_to_string(i_names, ', ')));
end;
$$;

-- Fills the event's fields that have no expression from the table's own columns _pgq_ev_type,
-- _pgq_ev_extra1 and so on.
create or replace function pgque.add_field_columns(i_trigger text, i_names text[], i_fields text[])
returns text[]
language plpgsql immutable
as $$
declare
    c_columns constant text[] := array['_pgq_ev_type', '_pgq_ev_data', '_pgq_ev_extra1',
                                      '_pgq_ev_extra2', '_pgq_ev_extra3', '_pgq_ev_extra4'];
    v_name    text;
begin
    for v_name in select name from unnest(i_names) name where starts_with(name, '_pgq_ev_') loop
        if v_name <> all (c_columns) then
            perform pgque.refuse_trigger(
                i_trigger, format('finds the column %L, which is no field of an event', v_name),
                format('Rename the column; the fields are: %s.', array_to_string(c_columns, ', ')));
        end if;
        i_fields[array_position(c_columns, v_name)] :=
            coalesce(i_fields[array_position(c_columns, v_name)], v_name);
    end loop;
    return i_fields;
end;
$$;

-- Checks the key of an update or delete: the table must have one, and an update must not change it.
-- Consumers that apply the change elsewhere find the row by its key. Returns true.
create or replace function pgque.check_key(
    i_trigger text, i_op text, i_key text[], i_names text[], i_old text[], i_new text[])
returns boolean
language plpgsql immutable
as $$
declare
    v_changed text;
begin
    if i_key = '{}' then
        perform pgque.refuse_change(
            i_trigger, format('%s on a table without a primary key', i_op),
            'Add a primary key, or name the columns that identify a row: pkey=column,...');
    end if;
    if i_op = 'UPDATE' then
        select name into v_changed
        from unnest(i_names, i_old, i_new) c (name, was, becomes)
        where was is distinct from becomes and name = any (i_key)
        limit 1;
        if found then
            perform pgque.refuse_change(
                i_trigger, format('it updates "%s", a column of the key', v_changed),
                'Delete the row and insert it with the new key.');
        end if;
    end if;
    return true;
end;
$$;

-- Returns whether an update makes an event. If columns are ignored, an update that changed only
-- these and the event's own fields makes none. An update that changed nothing at all makes an
-- event, as in PgQ.
create or replace function pgque.is_change_sent(
    i_names text[], i_sent boolean[], i_ignored text[], i_old text[], i_new text[])
returns boolean
language plpgsql immutable
as $$
begin
    return i_ignored = '{}' or (
        select bool_or(sent) is not false
        from unnest(i_names, i_sent, i_old, i_new) c (name, sent, was, becomes)
        where was is distinct from becomes
          and (sent or name = any (i_ignored) or starts_with(name, '_pgq_ev_')));
end;
$$;
