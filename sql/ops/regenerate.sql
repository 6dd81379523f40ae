-- Moves the event tables of a queue that an earlier version created into pgque.event. PostgreSQL
-- reads the events once, to see that they belong there. The table that stands for all three is
-- created anew, with the rights to read it that were granted.
-- locks: the queue's event tables, exclusively, until the transaction ends. writes: the catalog.
create or replace function pgque.move_event_tables(i_queue_id integer)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_parent  text := format('event_%s', i_queue_id);
    v_grants  text[];
    v_grant   text;
begin
    select array_agg(format('grant select on pgque.%I to %s', v_parent,
                            case a.grantee when 0 then 'public' else a.grantee::regrole::text end))
    into v_grants
    from pg_class c
    cross join aclexplode(c.relacl) a
    where c.oid = to_regclass(format('pgque.%I', v_parent))
      and a.privilege_type = 'SELECT' and a.grantee <> c.relowner;
    for v_nr in 0..2 loop
        execute format('alter table pgque.%I no inherit pgque.%I', format('%s_%s', v_parent, v_nr),
                       v_parent);
    end loop;
    execute format('drop table pgque.%I', v_parent);
    perform pgque.create_event_parent(i_queue_id);
    for v_nr in 0..2 loop
        perform pgque.attach_event_child(i_queue_id, v_nr);
    end loop;
    foreach v_grant in array coalesce(v_grants, '{}') loop
        execute v_grant;  -- quoted: by format and regrole
    end loop;
end;
$$;

-- Brings the tables and functions of each queue to this version. Returns the number of queues. The
-- installation calls it last, for queues that an older version created.
-- locks: the rows of all queues; event tables that it moves. writes: the catalog.
create or replace function pgque.upgrade_schema()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue_id  integer;
    v_queues    integer := 0;
begin
    for v_queue_id in select q.queue_id from pgque.queue q order by q.queue_id for update loop
        if (select c.relkind from pg_class c
            where c.oid = to_regclass(format('pgque.%I', format('event_%s', v_queue_id)))) = 'r' then
            perform pgque.move_event_tables(v_queue_id);
        end if;
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

-- What earlier versions had: a view for tickers to pass over sequences that a drop had locked, one
-- that counted what consumers did, and the logs (schema/log.sql), which no view reads any more.
drop view if exists pgque.locked_relation, pgque.consumer_count;
drop table if exists pgque.tick_before, pgque.position_before;
