-- Removes the add-ons, the jobs, their log and the schema, but not the roles, which belong to the cluster.
-- Refused while queues have unread events or dead letters, or tables are captured, unless forced. Unread
-- events are those that a consumer has not finished, that have no tick yet, that wait for a retry, or that
-- are scheduled. Producers wait in the meantime.
-- locks: all tables, exclusively. writes: the catalog, cron.job, cron.job_run_details.
create or replace function pgque.uninstall(i_force boolean default false)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   pgque.queue;
    v_floor   pgque.tick;
    v_unread  boolean;
    v_names   text[] := array[]::text[];
    v_addon   text;
begin
    for v_addon in
        select a.addon_name
        from pgque.addon a
        where to_regprocedure(format('%I.uninstall(boolean)', a.addon_name)) is not null
        order by a.addon_name
    loop
        execute format('select %I.uninstall($1)', v_addon) using i_force;
    end loop;
    if i_force then  -- a writer has locked its table before it comes to ours
        drop function pgque.capture_rows(), pgque.capture_change() cascade;
    end if;
    perform pgque.lock_tables(true);
    if i_force is not true then
        perform pgque.check_adopted();
        perform pgque.check_uncaptured(null, ' Or remove all with: select pgque.uninstall(true);');
        for v_queue in select q.* from pgque.queue q order by q.queue_name loop
            v_floor := pgque.find_floor_tick(v_queue.queue_id);
            execute format('select exists (select from %s where ev_txid >= $1 '  -- quoted: a number's
                           'and not pg_visible_in_snapshot(ev_txid, $2))', v_queue.queue_data_pfx)
            into v_unread using pg_snapshot_xmin(v_floor.tick_snapshot), v_floor.tick_snapshot;
            if v_unread
               or exists (select from pgque.retry_queue r where r.ev_queue = v_queue.queue_id)
               or exists (select from pgque.dead_letter d where d.dl_queue_id = v_queue.queue_id)
               or exists (select from pgque.delayed_events d
                          where d.de_queue_name = v_queue.queue_name) then
                v_names := array_append(v_names, format('"%s"', v_queue.queue_name));
            end if;
        end loop;
        if v_names <> '{}' then
            raise exception 'queues hold dead letters, or events that were not read yet: %',
                            array_to_string(v_names, ', ')
                using errcode = 'PQ020', hint = 'Let their consumers finish, replay or purge the dead '
                                                'letters, or remove everything with: '
                                                'select pgque.uninstall(true);';
        end if;
    end if;

    perform pgque.remove_jobs();
    perform pgque.purge_cron_log('0');
    drop schema pgque cascade;
end;
$$;
