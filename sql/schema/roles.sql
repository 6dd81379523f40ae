-- Three roles: pgque_reader consumes, pgque_writer produces, pgque_admin does both and runs the
-- queue. They belong to the cluster and remain after an uninstall. If the installing role may not
-- create them, the error shows the commands for an administrator. Nothing else here needs more than
-- the right to create a schema.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['pgque_reader', 'pgque_writer', 'pgque_admin'] loop
        continue when exists (select from pg_roles where rolname = v_role);
        begin
            execute format('create role %I nologin', v_role);
        exception
            when duplicate_object or unique_violation then
                null;  -- an installation in another database was faster
        end;
    end loop;

    v_role := 'pgque_admin';
    if not pg_has_role(v_role, 'pgque_reader', 'member') then
        grant pgque_reader to pgque_admin;
    end if;
    if not pg_has_role(v_role, 'pgque_writer', 'member') then
        grant pgque_writer to pgque_admin;
    end if;
exception
    when insufficient_privilege then
        raise exception 'role % is missing or incomplete, and % may not change that: %', v_role,
                        current_user, sqlerrm
            using errcode = 'insufficient_privilege',
                  hint = 'Let an administrator run: create role pgque_reader nologin; create role '
                         'pgque_writer nologin; create role pgque_admin nologin; grant '
                         'pgque_reader, pgque_writer to pgque_admin; then install again.';
end;
$$;
