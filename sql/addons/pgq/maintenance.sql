-- Maintenance under PgQ's names, as pgqd calls it.

-- Lists the tables whose rows are changed in place, if the server runs no autovacuum.
create or replace function pgq.maint_tables_to_vacuum()
returns setof text
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query select * from pgque.maint_tables_to_vacuum();
    if not current_setting('autovacuum')::boolean then
        return query
        select format('pgq_ext.%I', t)
        from unnest('{completed_tick,completed_batch,completed_event,partial_batch}'::text[]) t;
    end if;
end;
$$;

-- Lists what there is to maintain now: functions with no or one argument, to be called again while
-- they return more than 0, and tables to vacuum.
create or replace function pgq.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return query
    select o.func_name, o.func_arg from pgque.maint_operations() o where o.func_name <> 'vacuum';
    return query select 'vacuum', t from pgq.maint_tables_to_vacuum() t;
end;
$$;

-- Returns 0: the installation brings the tables up to date itself.
create or replace function pgq.upgrade_schema()
returns integer
language plpgsql security definer set search_path = pgq, pg_catalog, pg_temp
as $$
begin
    return 0;
end;
$$;
