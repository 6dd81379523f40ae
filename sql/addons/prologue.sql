-- One transaction installs the add-on @ADDON@; a second installer waits here for the first.
-- The search path is pinned so that no object of the installing user can stand in for ours.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

select pg_advisory_xact_lock(hashtextextended('pgque.install', 0));

-- Needs the engine in the same version, and continues as the role that owns it.
do $$
declare
    v_installed  text;
    v_owner      text;
begin
    if to_regclass('pgque.addon') is not null then
        execute 'select c.schema_version, n.nspowner::regrole::text from pgque.config c, '
                'pg_namespace n where n.nspname = ''pgque''' into v_installed, v_owner;
    end if;
    if v_installed is distinct from '@VERSION@' then
        raise exception using
            errcode = 'PQ011',
            message = format('@ADDON@ @VERSION@ needs pgque @VERSION@, and this database has %s',
                             coalesce('pgque ' || v_installed, 'none or an older one')),
            hint = 'Install pgque.sql and pgque_@ADDON@.sql of one version, in this order.';
    elsif not pg_has_role(to_regrole(v_owner), 'member') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = format('pgque belongs to %s, and %s is not a member of that role',
                             v_owner, current_user),
            hint = format('Install as %s, or as a superuser.', v_owner);
    end if;
    execute format('set local role %s', v_owner);  -- quoted: by regrole
    if to_regnamespace('@ADDON@') is not null
       and not exists (select from pgque.addon a where a.addon_name = '@ADDON@') then
        raise exception using
            errcode = 'duplicate_schema',
            message = 'there is a schema @ADDON@ already, and it is not that of this add-on',
            hint = 'Rename or drop it, for example the extension that it belongs to. The queues of '
                   'PgQ''s extension are moved before: docs/migrating.md.';
    end if;
end;
$$;

insert into pgque.addon (addon_name, addon_version) values ('@ADDON@', '@VERSION@')
on conflict (addon_name) do update
set addon_version = excluded.addon_version, installed_at = clock_timestamp()
where addon.addon_version <> excluded.addon_version;
