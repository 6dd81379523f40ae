-- Brings the functions and rights of each queue to this version. Returns the number of queues. The
-- installation calls it last, for queues that an older version created.
-- locks: the rows of all queues, for at most 10 seconds each. writes: the catalog.
create or replace function pgque.upgrade_schema()
returns integer
language plpgsql security definer
set lock_timeout = '10s'
as $$
declare
    v_queue_id  integer;
    v_queues    integer := 0;
begin
    for v_queue_id in
        select q.queue_id from pgque.queue q order by q.queue_id for no key update
    loop
        perform pgque.build_functions(v_queue_id);
        perform pgque.open_event_tables(v_queue_id);
        v_queues := v_queues + 1;
    end loop;
    return v_queues;
end;
$$;

do $$
begin
    perform pgque.upgrade_schema();
end;
$$;

do $$
declare
    v_names  constant text := (
        select string_agg(format('pgque_%s.sql', a.addon_name), ', ' order by a.addon_name)
        from pgque.addon a
        where a.addon_version <> '@VERSION@');
begin
    if v_names is not null then
        raise warning using
            message = format('add-ons have another version than pgque @VERSION@: install %s',
                             v_names);
    end if;
end;
$$;
