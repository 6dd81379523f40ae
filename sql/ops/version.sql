-- Returns the version of the pgque.sql that was installed last.
-- locks: none. writes: nothing.
create or replace function pgque.version()
returns text
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return '@VERSION@';
end;
$$;
