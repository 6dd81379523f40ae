-- Returns the state of ticking and maintenance, one row per component: ok or the problem, with details.
-- A queue is late if queue_health says that no ticker ticks it.
create or replace function pgque.status()
returns table (component text, status text, detail text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_config  pgque.config;
    v_late    text;
begin
    select * into v_config from pgque.config;
    return query
    select 'postgresql', 'ok', current_setting('server_version')
    union all
    select 'pgque', 'ok', format('%s, installed at %s', v_config.schema_version, (
        select date_trunc('second', max(h.installed_at)) from pgque.version_history h));
    return query select * from pgque.scheduler_status();

    select string_agg(format('"%s"', q.queue_name), ', ' order by q.queue_name) into v_late
    from pgque.ticker_health h
    join pgque.queue q using (queue_name)
    where h.status <> 'ok' and not q.queue_ticker_paused and not q.queue_external_ticker;
    return query
    select 'ticks', case when v_late is null then 'ok' else 'late' end,
           coalesce('no tick for too long: ' || v_late,
                    format('every %s ms at most', v_config.tick_period_ms))
    union all
    select 'queues', 'ok', format('%s, with %s consumers', (select count(*) from pgque.queue),
                                  (select count(*) from pgque.subscription_base s
                                   where s.sub_role <> 'coop_member'));
end;
$$;

-- Returns the rows of status about pg_cron: whether it exists, and the result of each job's last run. A
-- job that was removed or is not active is reported as missing.
create or replace function pgque.scheduler_status()
returns table (component text, status text, detail text)
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_config   pgque.config;
    v_message  text;
begin
    begin
        v_message := format('pg_cron %s', pgque.find_cron(true));
    exception
        when sqlstate 'PQ019' then
            return query values ('scheduler', 'none', sqlerrm);
            return;
    end;
    select * into v_config from pgque.config;
    return query values (
        'scheduler', case when v_config.scheduler is null then 'stopped' else 'ok' end, v_message);
    return query execute
        'select n.name, '
        'case when n.job_id is null then ''stopped'' when not coalesce(j.active, false) then ''missing'' '
        'when d.status = ''failed'' then ''failed'' else ''ok'' end, '
        'case when n.job_id is null then ''not scheduled: select pgque.start();'' '
        'else concat_ws('', '', format(''job %s'', n.job_id), j.schedule, j.command, '
        'coalesce(''last run '' || d.status, ''no run yet''), '
        'case when d.status = ''failed'' then d.return_message end) end '
        'from (values (1, ''ticker'', $1), (2, ''maint'', $2)) n(nr, name, job_id) '
        'left join cron.job j on j.jobid = n.job_id '
        'left join lateral (select r.status, r.return_message from cron.job_run_details r '
        'where r.jobid = n.job_id and r.status in (''succeeded'', ''failed'') '
        'order by r.runid desc limit 1) d on true '
        'order by n.nr'
    using v_config.ticker_job_id, v_config.maint_job_id;
end;
$$;
