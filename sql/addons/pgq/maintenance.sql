-- Maintenance under PgQ's names, as pgqd calls it.

-- Lists the tables whose rows are changed in place, if the server runs no autovacuum.
create or replace function pgq.maint_tables_to_vacuum()
returns setof text
language plpgsql security definer
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
-- they return more than 0, and tables to vacuum. The functions of queue_extra_maint get the queue's
-- name. One that is no longer allowed, or was dropped, is left out.
create or replace function pgq.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql security definer
as $$
begin
    return query
    select o.func_name, o.func_arg from pgque.maint_operations() o where o.func_name <> 'vacuum';
    return query
    select m.func_name, q.queue_name
    from pgq.queue_extra x
    join pgque.queue q on q.queue_id = x.queue_id
    cross join unnest(x.extra_maint) with ordinality e (func_name, nr)
    join pgq.maint_function m on m.func_name = e.func_name
    where to_regprocedure(format('%s(text)', m.func_name)) is not null
    order by q.queue_name, e.nr;
    return query select 'vacuum', t from pgq.maint_tables_to_vacuum() t;
end;
$$;

-- Allows a function schema.name(text) in queue_extra_maint. pgqd calls it with its own rights, so
-- only the owner of the schema may allow one. Returns 1, or 0 if it was allowed.
-- locks: none. writes: maint_function.
create or replace function pgq.allow_extra_maint(i_function text)
returns integer
language plpgsql security definer
as $$
declare
    v_new integer;
begin
    if i_function is null or i_function !~ '^[^.()]+[.][^.()]+$'
       or to_regprocedure(format('%s(text)', i_function)) is null then
        perform pgque.refuse_value(
            'there is no function %s(text)', i_function,
            'Pass schema.name of a function that takes the name of a queue.');
    end if;
    insert into pgq.maint_function (func_name) values (i_function) on conflict do nothing;
    get diagnostics v_new = row_count;
    return v_new;
end;
$$;

-- Takes back what allow_extra_maint allowed: maintenance no longer lists the function. Returns 1,
-- or 0 if it was not allowed.
-- locks: the function's row. writes: maint_function.
create or replace function pgq.forbid_extra_maint(i_function text)
returns integer
language plpgsql security definer
as $$
declare
    v_gone integer;
begin
    delete from pgq.maint_function m where m.func_name = i_function;
    get diagnostics v_gone = row_count;
    return v_gone;
end;
$$;

-- Refuses functions in queue_extra_maint that the owner of the schema did not allow.
create or replace function pgq.check_extra_maint(i_functions text[])
returns void
language plpgsql
as $$
begin
    if exists (select from unnest(i_functions) f
               where not exists (select from pgq.maint_function m where m.func_name = f)) then
        perform pgque.refuse_value(
            'queue_extra_maint names functions that are not allowed: %s', i_functions::text,
            'Let the owner of schema pgq allow each: '
            'select pgq.allow_extra_maint(''schema.name'');');
    end if;
end;
$$;
