-- Triggers under PgQ's names. A trigger function cannot call another one, so the engine's are copied.
-- They name PgQ's role, and count the event for queue_per_tx_limit.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgq.jsontriga()
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
                'Whoever changes the table needs the role pgq_writer: grant pgq_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('json', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- As pgque.jsontriga, with changes.
create or replace function pgq.logutriga()
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
                'Whoever changes the table needs the role pgq_writer: grant pgq_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('url', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

-- As pgque.jsontriga, with changes.
create or replace function pgq.sqltriga()
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
                'Whoever changes the table needs the role pgq_writer: grant pgq_writer to %I;',
                current_user);
    end if;
    c := pgque.send_change('sql', tg_name, tg_relid, tg_table_schema, tg_table_name, tg_argv,
                           tg_when, tg_level, tg_op, old, new);
    if c.is_sent then
        perform pgq.check_tx_limit(tg_argv[0]);
    end if;
    if c.is_last then
        return null;
    end if;
    return coalesce(new, old);
end;
$$;

drop function if exists pgq.refuse_role(text, text, text);  -- of version 0.3
