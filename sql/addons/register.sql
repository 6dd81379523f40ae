-- Needs the engine in the same version. The add-on's schema must not exist before, because objects that
-- another role put into it could run code with the rights of the installing role.
do $$
declare
    v_installed  text;
    v_other      text;
begin
    if to_regclass('pgque.addon') is not null then
        execute 'select c.schema_version from pgque.config c' into v_installed;
    end if;
    if v_installed is distinct from '@VERSION@' then
        raise exception using
            errcode = 'PQ011',
            message = format('@ADDON@ @VERSION@ needs pgque @VERSION@, and this database has %s',
                             coalesce('pgque ' || v_installed, 'none or an older one')),
            hint = 'Install pgque.sql and pgque_@ADDON@.sql of one version, in this order.';
    end if;
    select min(n.nspname::text) into v_other
    from pg_namespace n
    where n.nspname = any (array['@ADDON@', '@ADDON@_coop', '@ADDON@_ext']);
    if v_other is not null
       and not exists (select from pgque.addon a where a.addon_name = '@ADDON@') then
        raise exception using
            errcode = 'duplicate_schema',
            message = format('there is a schema %s already, and it is not that of this add-on',
                             v_other),
            hint = 'Rename or drop it, for example the extension that it belongs to. The queues of '
                   'PgQ''s extension are moved before: docs/migrating.md.';
    end if;
end;
$$;

insert into pgque.addon (addon_name, addon_version) values ('@ADDON@', '@VERSION@')
on conflict (addon_name) do update
set addon_version = excluded.addon_version, installed_at = clock_timestamp()
where addon.addon_version <> excluded.addon_version;
