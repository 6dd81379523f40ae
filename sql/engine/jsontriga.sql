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
    c := pgque.describe_change(tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv, tg_when,
                               tg_level, tg_op, tg_when operator(pg_catalog.<>) 'BEFORE', old, new);
    if c.is_event then
        perform pgque.insert_change(
            c.queue, c.expressions, coalesce(new, old),
            array[pgque.json_change_type(tg_op, tg_table_schema, tg_table_name, c.key),
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

-- The type of a JSON event: the operation, the table and the key columns.
-- locks: none. writes: nothing.
create or replace function pgque.json_change_type(
    i_op text, i_schema text, i_table text, i_key text[])
returns text
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return format('{"op":"%s","table":%s,"pkey":%s}',
                  i_op, array_to_json(array[i_schema, i_table]), array_to_json(i_key));
end;
$$;

-- A row as a JSON object in the order of its columns: integers and booleans as JSON values, times
-- in ISO 8601, everything else as the text that PostgreSQL prints.
-- locks: none. writes: nothing.
create or replace function pgque.row_as_json(
    i_names text[], i_types oid[], i_sent boolean[], i_values text[])
returns text
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
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
