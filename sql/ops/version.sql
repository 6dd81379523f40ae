-- Returns the version of the pgque.sql that was installed last.
create or replace function pgque.version()
returns text
language plpgsql immutable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return '@VERSION@';
end;
$$;
