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
