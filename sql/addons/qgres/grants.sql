-- Functions of queues as this version makes them, and those of version 0.3 that this version has not.
do $$
declare
    v_function regprocedure;
begin
    perform qgres._build_functions(q) from qgres._queue q;
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'qgres'::regnamespace
          and (p.proname ~ '^(sp_positions_[0-9]+|_build_[a-z]+_functions?|_lock_for_consumer)$'
               or p.proname in ('_refuse_partitioned', '_refuse_snapshot', 'queue__partition')
               or p.proname = '_lock_publisher' and p.pronargs = 2
               or p.oid = to_regprocedure('qgres.queue__create(text, text, integer)')
               or p.oid = to_regprocedure('qgres."Publish"(text, text, bytea, jsonb, text)'))
    loop
        execute format('drop function %s', v_function);  -- quoted: by regprocedure
    end loop;
end;
$$;

-- The last file: revokes all from PUBLIC, then grants. What PUBLIC gets is what upstream gives it:
-- the names and types of queues, and functions that call the others with the caller's rights. pgque_admin
-- also manages serial queues.
revoke all on all tables in schema qgres from public;
revoke all on all sequences in schema qgres from public;
revoke all on all routines in schema qgres from public;

grant usage on schema qgres to public;
grant select on qgres.queue to public;

grant execute on function
    qgres.queue_entry(bytea, jsonb, text),
    qgres._queue_type__sanitize(text),
    qgres.queue__get(text),
    qgres.queue__get(integer),
    qgres.queue__get_id(text),
    qgres.queue__create(text, text),
    qgres.queue__drop(text, boolean),
    qgres."Publish"(integer, bytea, jsonb, text),
    qgres."Publish"(integer, bytea),
    qgres."Publish"(integer, jsonb),
    qgres."Publish"(integer, text),
    qgres."Publish"(text, bytea, jsonb, text),
    qgres."Publish"(text, bytea),
    qgres."Publish"(text, jsonb),
    qgres."Publish"(text, text),
    qgres.add(integer, bytea, jsonb, text),
    qgres.add(integer, bytea),
    qgres.add(integer, jsonb),
    qgres.add(integer, text),
    qgres.add(text, bytea, jsonb, text),
    qgres.add(text, bytea),
    qgres.add(text, jsonb),
    qgres.add(text, text)
to public;

grant execute on function
    qgres.queue__create(text, qgres.queue_type),
    qgres.queue__drop(integer, boolean),
    qgres.log_queue(text),
    qgres.unlog_queue(text),
    qgres.maint()
to qgres__queue_manage, pgque_admin;

-- Consumers of a log have the roles of pgque.
grant execute on function qgres.logged_as(text), qgres.list_queues()
to pgque_reader, pgque_admin;

select pgque.grant_execute('qgres', 'qgres__queue_insert',
    '_Publish _add');

select pgque.grant_execute('qgres', 'qgres__queue_delete',
    'consumer__register consumer__drop consume Remove');
