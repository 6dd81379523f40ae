-- Continues as the role that owns the schema, so that all objects keep one owner: our own functions
-- are closed to all other roles. A superuser's session may not, because SET ROLE and SET SESSION
-- AUTHORIZATION are not a boundary: a trigger or a view of the owner could set the role back. For the
-- same reason the installation stops if another role has put something into the schema. All of this only
-- reads catalogs, because reading a relation of the schema could already run such code.
do $$
declare
    v_schema   constant oid := to_regnamespace('pgque');
    v_owner    constant oid := (select n.nspowner from pg_namespace n where n.oid = v_schema);
    -- pg_stat_activity names the login also after SET SESSION AUTHORIZATION.
    v_is_super constant boolean := exists (
        select from pg_roles r
        where r.rolsuper
          and (r.rolname = session_user
               or r.oid in (select a.usesysid from pg_stat_activity a
                            where a.pid = pg_backend_pid())));
    v_ours     constant oid[] := array(  -- with those of the add-ons
        select n.oid from pg_namespace n
        where n.nspowner = v_owner
          and n.nspname = any (array['pgque', 'pgq', 'pgq_coop', 'pgq_ext', 'postgremq', 'qgres']));
    v_foreign  text;
begin
    if v_schema is null then
        return;
    elsif v_is_super
          and not (select r.rolsuper from pg_roles r where r.oid = v_owner) then
        raise exception 'pgque belongs to %, who is not a superuser: code of that role could run with '
                        'the rights of this superuser''s session', v_owner::regrole
            using errcode = 'insufficient_privilege',
                  hint = format('Connect as %s, or as a member of that role who is not a superuser.',
                                v_owner::regrole);
    elsif not pg_has_role(v_owner, 'member') then
        raise exception 'pgque belongs to %, and % is not a member of that role', v_owner::regrole,
                        current_user
            using errcode = 'insufficient_privilege',
                  hint = format('Install as %s.', v_owner::regrole);
    end if;

    select string_agg(pg_describe_object(o.classid, o.objid, 0), ', ' order by o.classid, o.objid)
    into v_foreign
    from (
        select 'pg_class'::regclass, c.oid from pg_class c
        where c.relnamespace = any (v_ours) and c.relowner <> v_owner
        union all
        select 'pg_proc'::regclass, p.oid from pg_proc p
        where p.pronamespace = any (v_ours) and p.proowner <> v_owner
        union all
        select 'pg_operator'::regclass, o.oid from pg_operator o
        where o.oprnamespace = any (v_ours) and o.oprowner <> v_owner
        union all
        select 'pg_trigger'::regclass, t.oid
        from pg_trigger t
        join pg_class c on c.oid = t.tgrelid
        join pg_proc p on p.oid = t.tgfoid
        where c.relnamespace = any (v_ours) and not t.tgisinternal and p.proowner <> v_owner
    ) o (classid, objid);
    if v_foreign is not null then
        raise exception 'schemas of % have objects of other roles: %', v_owner::regrole, v_foreign
            using errcode = 'insufficient_privilege',
                  hint = 'They could run code with the rights of the installing role. Drop them, then try '
                         'again.';
    end if;
    execute format('set local role %s', v_owner::regrole);  -- quoted: by regrole
end;
$$;
