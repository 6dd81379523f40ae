-- Schedules ticks and maintenance of this database by pg_cron, as the role that owns the schema.
-- Calling it again updates the jobs.
-- locks: the row of config. writes: config, cron.job.
create or replace function pgque.start()
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_job     record;
    v_job_id  bigint;
begin
    perform from pgque.config for update;
    for v_job in select * from pgque.cron_jobs(pgque.find_cron(true)) loop
        execute 'select cron.schedule($1, $2, $3)'
        into v_job_id using v_job.job_name, v_job.schedule, v_job.command;
        if v_job.job_name = 'pgque_ticker' then
            update pgque.config set ticker_job_id = v_job_id, scheduler = 'pg_cron';
        else
            update pgque.config set maint_job_id = v_job_id;
        end if;
    end loop;
end;
$$;

-- Unschedules the jobs; a run in progress ends with its next tick. Does nothing if nothing was started.
-- Fails if pg_cron is in another database, which may have jobs for this one.
-- locks: the row of config. writes: config, cron.job.
create or replace function pgque.stop()
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if not pgque.remove_jobs() and pgque.cron_database() <> current_database() then
        perform pgque.find_cron(false);
    end if;
end;
$$;

-- Unschedules the jobs that config names, if they still exist. Returns whether config named any.
-- locks: the row of config. writes: config, cron.job.
create or replace function pgque.remove_jobs()
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_config pgque.config;
begin
    select * into v_config from pgque.config for update;
    if v_config.scheduler is null then
        return false;
    end if;
    if pgque.has_cron() then
        execute 'select cron.unschedule(j.jobid) from cron.job j where j.jobid in ($1, $2)'
        using v_config.ticker_job_id, v_config.maint_job_id;
    end if;
    update pgque.config set scheduler = null, ticker_job_id = null, maint_job_id = null;
    return true;
end;
$$;
