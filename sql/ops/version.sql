-- Returns the version of the pgque.sql that was installed last.
create or replace function pgque.version()
returns text
language plpgsql immutable
as $$
begin
    return '@VERSION@';
end;
$$;
