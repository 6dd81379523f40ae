-- The add-ons that have maintenance: those with a function maint().
create or replace view pgque.addon_maintenance as
select a.addon_name
from pgque.addon a
where to_regprocedure(format('%I.maint()', a.addon_name)) is not null;

-- Runs the maintenance of an add-on, and returns how many operations it did. Returns 0 if the add-on has
-- been removed in the meantime.
-- locks: those of that function. writes: the same.
create or replace function pgque.maint_addon(i_addon_name text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_done  bigint := 0;
begin
    if exists (select from pgque.addon_maintenance m where m.addon_name = i_addon_name) then
        execute format('select %I.maint()', i_addon_name) into v_done;
    end if;
    return coalesce(v_done, 0);
end;
$$;

-- Creates the queue <add-on>.<name>, which logs what is published in an add-on, if it is missing.
-- Refuses a queue that was created in another way, because it may have other events and only shares the
-- name: no message would reach it. Returns the name of the queue.
-- locks: those of create_queue. writes: the same, queue.
create or replace function pgque.create_log(i_addon_name text, i_name text)
returns text
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue text := format('%s.%s', i_addon_name, i_name);
begin
    if pgque.create_queue(v_queue) = 1 then
        update pgque.queue q set queue_addon = i_addon_name where q.queue_name = v_queue;
    elsif not exists (select from pgque.queue q
                      where q.queue_name = v_queue and q.queue_addon = i_addon_name) then
        raise exception 'queue "%" exists, and % did not create it', v_queue, i_addon_name
            using errcode = 'PQ005',
                  hint = format('It may have events of other producers, so it cannot log "%s". '
                                'Consume or move them, drop it with: select pgque.drop_queue(%L); '
                                'and try again.', i_name, v_queue);
    end if;
    return v_queue;
end;
$$;

-- Lets roles execute the functions of an add-on that have the given names, with all argument lists.
-- Fails if a name belongs to no function.
-- locks: none. writes: the catalog.
create or replace function pgque.grant_execute(i_schema text, i_roles text, i_names text)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_routine regprocedure;
begin
    for v_routine in
        select p.oid
        from regexp_split_to_table(i_names, e'\\s+') n(name)
        left join pg_proc p on p.pronamespace = i_schema::regnamespace and p.proname = n.name
    loop
        execute format('grant execute on routine %s to %s', v_routine, i_roles);  -- quoted: our own lists
    end loop;
end;
$$;
