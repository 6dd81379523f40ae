-- Removes the schema, but not the roles, which belong to the cluster. Refused while SP queues have
-- consumers that have not read everything or entries that no consumer has read, or SR queues have
-- entries, unless forced.
-- locks: all tables of the schema, exclusively. writes: the catalog, pgque.addon,
-- pgque.snapshot_wait.
create or replace function qgres.uninstall(force boolean default false)
returns void
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue  qgres._queue;
    v_table  text;
    v_names  text[] := array[]::text[];
begin
    lock table qgres._queue, qgres._consumer in access exclusive mode;
    if force is not true then
        perform pgque.check_read_committed('uninstall without force');
        for v_queue in select q.* from qgres._queue q order by q.queue_name loop
            for v_table in select t from qgres._tables(v_queue) t loop
                execute format('lock table %s in access exclusive mode', v_table);  -- quoted: numbers
            end loop;
            if qgres._has_unread(v_queue) then
                v_names := array_append(v_names, format('"%s"', v_queue.queue_name));
            end if;
        end loop;
        if v_names <> '{}' then
            raise exception using
                errcode = 'PQ020',
                message = format('queues of qgres hold entries that were not read yet: %s',
                                 array_to_string(v_names, ', ')),
                hint = 'Read them, or remove all with: select qgres.uninstall(true);';
        end if;
    end if;
    delete from pgque.addon a where a.addon_name = 'qgres';
    delete from pgque.snapshot_wait w where w.wait_name like 'qgres %';
    drop schema qgres cascade;
end;
$$;
