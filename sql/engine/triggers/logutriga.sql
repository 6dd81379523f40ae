-- Trigger: each change of a row becomes an event with the row url-encoded. Arguments and formats
-- are in docs/triggers.md. It runs with the rights and the search_path of whoever changes the row.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.logutriga()
returns trigger
language plpgsql
as $$
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
                'Whoever changes the table needs the role pgque_writer: grant pgque_writer to %I;',
                current_user);
    end if;
    c := pgque.describe_change(tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv, tg_when,
                               tg_level, tg_op, tg_when operator(pg_catalog.<>) 'BEFORE', old, new);
    if c.is_event then
        perform pgque.insert_change(
            c.queue, c.expressions, coalesce(new, old),
            array[pgque.change_letter(tg_op, c.key),
                  pgque.row_as_url(c.names, c.sent, coalesce(c.new_values, c.old_values)),
                  c.table_name,
                  case when c.backup and tg_op operator(pg_catalog.=) 'UPDATE' then
                      pgque.row_as_url(c.names, c.sent, c.old_values) end,
                  null, null]);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- The type of a url-encoded event, in PgQ's letters: I, U or D, with the key columns where given,
-- and R for a TRUNCATE.
create or replace function pgque.change_letter(i_op text, i_key text[] default null)
returns text
language plpgsql immutable
as $$
begin
    if i_op = 'TRUNCATE' then
        return 'R';
    end if;
    return left(i_op, 1) || coalesce(':' || array_to_string(i_key, ','), '');
end;
$$;

-- A row as name=value&..., in the order of its columns. A null is a name alone. Most texts need no
-- encoding, so they skip the call of url_encode.
create or replace function pgque.row_as_url(i_names text[], i_sent boolean[], i_values text[])
returns text
language plpgsql immutable
as $$
begin
    return coalesce((
        select string_agg(
            case when name ~ '[^A-Za-z0-9_.-]' then pgque.url_encode(name) else name end
            || case when value ~ '[^A-Za-z0-9_.-]' then '=' || pgque.url_encode(value)
               else coalesce('=' || value, '') end,
            '&' order by nr)
        from unnest(i_names, i_sent, i_values) with ordinality c (name, sent, value, nr)
        where sent), '');
end;
$$;

-- Encodes a text as HTML forms do, from its bytes in UTF-8. A run of characters that need no
-- encoding is copied as a whole.
create or replace function pgque.url_encode(i_text text)
returns text
language plpgsql immutable strict
as $$
begin
    return (
        select string_agg(case
            when run[1] ~ '^[A-Za-z0-9_.-]' then run[1]
            else replace(regexp_replace(encode(convert_to(run[1], 'UTF8'), 'hex'),
                                        '(..)', e'%\\1', 'g'), '%20', '+') end, '' order by nr)
        from regexp_matches(i_text, '[A-Za-z0-9_.-]+|[^A-Za-z0-9_.-]+', 'g')
             with ordinality m (run, nr));
end;
$$;
