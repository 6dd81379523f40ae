-- The versions that were installed here, and when; the newest row is the running version.
create table if not exists pgque.version_history (
    version       text not null,
    installed_at  timestamptz not null default clock_timestamp(),
    primary key (installed_at, version)
);

-- If a newer version is installed, its trigger refuses this statement.
insert into pgque.config (schema_version) values ('@VERSION@')
on conflict (singleton) do update set schema_version = excluded.schema_version;

insert into pgque.version_history (version)
select '@VERSION@'
where '@VERSION@' is distinct from (
    select h.version from pgque.version_history h order by h.installed_at desc limit 1);

-- Prevents an older pgque.sql, even one without this check, from undoing what a newer one did: every
-- file writes its version, and the error rolls back the whole installation.
create or replace function pgque.refuse_downgrade()
returns trigger
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if string_to_array(substring(new.schema_version from '^[0-9.]*[0-9]'), '.')::integer[]
       < string_to_array(substring(old.schema_version from '^[0-9.]*[0-9]'), '.')::integer[] then
        raise exception 'pgque % is installed, which is newer than this file''s %',
                        old.schema_version, new.schema_version
            using errcode = 'PQ021',
                  hint = 'Install that version or a newer one. Nothing was changed.';
    end if;
    return new;
end;
$$;

create or replace trigger refuse_downgrade
before update of schema_version on pgque.config
for each row execute function pgque.refuse_downgrade();
