-- The schemas of PgQ's API, and its three roles. Each role is a member of pgque's role of the same
-- kind, because triggers and cursors run with the rights of their caller. The roles belong to the
-- cluster and remain after an uninstall; C PgQ in another database uses the same.
do $$
declare
    v_kind  text;
    v_role  text;
begin
    foreach v_kind in array array['admin', 'reader', 'writer'] loop
        v_role := format('pgq_%s', v_kind);
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when duplicate_object or unique_violation then
                    null;  -- an installation in another database was faster
            end;
        end if;
        if not pg_has_role(v_role, format('pgque_%s', v_kind), 'member') then
            execute format('grant %I to %I', format('pgque_%s', v_kind), v_role);
        end if;
        if v_kind <> 'admin' and not pg_has_role('pgq_admin', v_role, 'member') then
            execute format('grant %I to pgq_admin', v_role);
        end if;
    end loop;
exception
    when insufficient_privilege then
        raise exception using
            errcode = 'insufficient_privilege',
            message = format('role %s is missing or incomplete, and %s may not change that: %s',
                             v_role, current_user, sqlerrm),
            hint = 'Let an administrator run: create role pgq_reader nologin; '
                   'create role pgq_writer nologin; create role pgq_admin nologin; '
                   'grant pgq_reader, pgq_writer, pgque_admin to pgq_admin; '
                   'grant pgque_reader to pgq_reader; grant pgque_writer to pgq_writer; '
                   'then install again.';
end;
$$;

create schema if not exists pgq;
create schema if not exists pgq_coop;
create schema if not exists pgq_ext;
