-- Trigger: each change of a row becomes an event with the row as JSON. Arguments and formats are in
-- docs/triggers.md. It runs with the rights and the search_path of whoever changes the row.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.jsontriga()
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
            array[pg_catalog.format(
                      '{"op":"%s","table":%s,"pkey":%s}', tg_op,
                      pg_catalog.array_to_json(array[tg_table_schema, tg_table_name]),
                      pg_catalog.array_to_json(c.key)),
                  pgque.row_as_json(c.names, c.types, c.sent, coalesce(c.new_values, c.old_values)),
                  c.table_name,
                  case when c.backup and tg_op operator(pg_catalog.=) 'UPDATE' then
                      pgque.row_as_json(c.names, c.types, c.sent, c.old_values) end,
                  null, null]);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- A row as a JSON object in the order of its columns: integers and booleans as JSON values, times
-- in ISO 8601, everything else as the text that PostgreSQL prints.
create or replace function pgque.row_as_json(
    i_names text[], i_types oid[], i_sent boolean[], i_values text[])
returns text
language plpgsql stable
as $$
begin
    return (
        select format('{%s}', string_agg(format('%s:%s', to_json(name), case
            when value is null then 'null'
            when type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then value
            when type = 'bool'::regtype then case value when 't' then 'true' else 'false' end
            when type = 'timestamp'::regtype then to_json(value::timestamp)::text
            when type = 'timestamptz'::regtype then to_json(value::timestamptz)::text
            else to_json(value)::text end), ',' order by nr))
        from unnest(i_names, i_types, i_sent, i_values) with ordinality c (name, type, sent, value, nr)
        where sent);
end;
$$;
