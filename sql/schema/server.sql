do $$
begin
    if current_setting('server_version_num')::integer < 140000 then
        raise exception 'pgque needs PostgreSQL 14 or newer, this server is %',
                        current_setting('server_version')
            using errcode = 'PQ011', hint = 'Upgrade the server, or install pgque on another one.';
    end if;
end;
$$;

create schema if not exists pgque;
