-- Removes the schema unless events are unread, as pgque.uninstall() does. To remove unread events
-- as well, run instead: select pgque.uninstall(true);
do $$
begin
    if to_regprocedure('pgque.uninstall(boolean)') is not null then
        perform pgque.uninstall();
    elsif to_regnamespace('pgque') is not null then
        raise exception 'this version of pgque cannot tell whether events are unread'
            using errcode = 'PQ020', hint = 'Install the new version first, or remove everything with: '
                                            'drop schema pgque cascade;';
    end if;
end;
$$;
