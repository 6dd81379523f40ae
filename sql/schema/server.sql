-- One transaction installs everything; a second installer waits here for the first.
-- The search path is pinned so that no object of the installing user can stand in for ours.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

select pg_advisory_xact_lock(hashtextextended('pgque.install', 0));

do $$
begin
    if current_setting('server_version_num')::integer < 140000 then
        raise exception using
            errcode = 'PQ011',
            message = format('pgque needs PostgreSQL 14 or newer, this server is %s',
                             current_setting('server_version')),
            hint = 'Upgrade the server, or install pgque on another one.';
    end if;
end;
$$;

create schema if not exists pgque;
