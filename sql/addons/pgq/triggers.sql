-- Triggers under PgQ's names. A trigger function cannot call another one, so each calls what the
-- function of pgque calls: docs/triggers.md has the arguments and formats. They run with the rights
-- and the search_path of whoever changes the row.

-- Trigger: each change of a row becomes an event with the row as JSON.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.jsontriga()
returns trigger
language plpgsql
as $$
declare
    c pg_catalog.record;
begin
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        perform pgq.refuse_role(tg_name, tg_table_schema, tg_table_name);
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
        perform pgq.check_tx_limit(c.queue);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- Trigger: each change of a row becomes an event with the row url-encoded.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.logutriga()
returns trigger
language plpgsql
as $$
declare
    c pg_catalog.record;
begin
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        perform pgq.refuse_role(tg_name, tg_table_schema, tg_table_name);
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
        perform pgq.check_tx_limit(c.queue);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- Trigger: each change of a row becomes an event with a fragment of SQL.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.sqltriga()
returns trigger
language plpgsql
as $$
declare
    c pg_catalog.record;
begin
    if not pg_catalog.pg_has_role('pgque_writer', 'usage') then
        perform pgq.refuse_role(tg_name, tg_table_schema, tg_table_name);
    end if;
    c := pgque.describe_change(tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv, tg_when,
                               tg_level, tg_op, false, old, new);
    if c.is_event then
        perform pgque.insert_change(
            c.queue, c.expressions, coalesce(new, old),
            array[pgque.change_letter(tg_op),
                  pgque.change_fragment(tg_op, c.names, c.sent, c.key, c.old_values, c.new_values),
                  c.table_name,
                  case when c.backup and tg_op operator(pg_catalog.=) 'UPDATE' then
                      pgque.row_as_url(c.names, c.sent, c.old_values) end,
                  null, null]);
        perform pgq.check_tx_limit(c.queue);
    end if;
    if c.skip or tg_when operator(pg_catalog.=) 'AFTER' then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- Raises the error for a role that changes a table with a trigger, and may not send events.
create or replace function pgq.refuse_role(i_trigger text, i_schema text, i_table text)
returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'insufficient_privilege',
        message = format(
            'role "%s" may not send the changes of table %s.%s: trigger "%s" sends them to a queue',
            current_user, i_schema, i_table, i_trigger),
        hint = format(
            'Whoever changes the table needs the role pgq_writer: grant pgq_writer to %I;',
            current_user);
end;
$$;
