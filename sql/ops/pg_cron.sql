-- Functions about pg_cron: its version, its database, and the jobs that it should run.

-- Returns the jobs that tick and maintain a database's queues, for this version of pg_cron. Since 1.5,
-- jobs can run every few seconds; before, every minute. Each run ticks in a loop, a little longer than
-- until the next run is due: pg_cron never runs a job twice at once, but starts the next run when the
-- current one ends. So no tick is missed between runs.
create or replace function pgque.cron_jobs(
    i_cron_version text, out job_name text, out schedule text, out command text)
returns setof record
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_number integer[] := string_to_array(
        substring(i_cron_version from '^[0-9]+[.][0-9]+'), '.')::integer[];
begin
    if v_number >= '{1,5}' then
        return query values
            ('pgque_ticker', '10 seconds', 'call pgque.ticker_loop(''11.5 seconds'')'),
            ('pgque_maint', '30 seconds', 'call pgque.maint_loop(''30 seconds'')');
    else
        return query values
            ('pgque_ticker', '* * * * *', 'call pgque.ticker_loop(''61.5 seconds'')'),
            ('pgque_maint', '* * * * *', 'call pgque.maint_loop(''1 minute'')');
    end if;
end;
$$;

-- Returns the statements that create or remove this database's jobs in pg_cron's database, if that is
-- another one. Names of jobs are unique there, so they contain the database's name.
create or replace function pgque.cron_statements(i_cron_version text, i_start boolean)
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return (
        select string_agg(
            case when i_start
                then format('select cron.schedule_in_database(%L, %L, %L, %L);',
                            format('%s of %s', j.job_name, current_database()),
                            j.schedule, j.command, current_database())
                else format('select cron.unschedule(%L);',
                            format('%s of %s', j.job_name, current_database())) end, ' ')
        from pgque.cron_jobs(i_cron_version) j);
end;
$$;

-- Returns the database that pg_cron reads its jobs from; null if the server did not load it. Only
-- superusers may see the setting; for others it is '' unless pg_cron is in this database.
create or replace function pgque.cron_database()
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return current_setting('cron.database_name', true);
exception
    when insufficient_privilege then
        if exists (select from pg_extension e where e.extname = 'pg_cron') then
            return current_database();
        end if;
        return '';
end;
$$;

-- Returns whether this database has pg_cron's schema and the role may use it.
create or replace function pgque.has_cron()
returns boolean
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return exists (
    select from pg_extension e
    join pg_namespace n on n.nspname = 'cron'
    where e.extname = 'pg_cron' and has_schema_privilege(n.oid, 'usage'));
end;
$$;

-- Returns the version of pg_cron in this database. If pg_cron cannot be used, the error says what is
-- missing, and what to run in which database instead.
create or replace function pgque.find_cron(i_start boolean)
returns text
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_database   text := pgque.cron_database();
    v_version    text := (select e.extversion from pg_extension e where e.extname = 'pg_cron');
    v_available  text := (select a.default_version from pg_available_extensions a
                          where a.name = 'pg_cron');
    v_message    text;
    v_hint       text;
begin
    if v_database is null then
        v_message := 'this server runs no pg_cron';
        v_hint := 'Load it (shared_preload_libraries = ''pg_cron'', cron.database_name = '
                  || quote_literal(current_database()) || '), or have any scheduler run '
                  '"call pgque.ticker_loop()" and "select pgque.maint()"; so does the command '
                  '"pgque ticker". See docs/scheduling.md.';
    elsif v_database = '' then
        v_message := format('pg_cron is not in database "%s"', current_database());
        v_hint := format('If cron.database_name is %L, let a superuser run: create extension '
                         'pg_cron; if it is another database, run there: %s',
                         current_database(), pgque.cron_statements(v_available, i_start));
    elsif v_database <> current_database() then
        v_message := format('pg_cron lives in database "%s", not in database "%s"',
                            v_database, current_database());
        v_hint := format('Run there: %s', pgque.cron_statements(v_available, i_start));
    elsif v_version is null then
        v_message := format('database "%s" has no extension pg_cron yet', v_database);
        v_hint := 'Let a superuser run in it: create extension pg_cron;';
    elsif not pgque.has_cron() then
        v_message := format('%s, who owns pgque, may not use the schema cron', current_user);
        v_hint := format('Let a superuser run: grant usage on schema cron to %I;', current_user);
    else
        return v_version;
    end if;
    raise exception using errcode = 'PQ019', message = v_message, hint = v_hint;
end;
$$;

-- Deletes pg_cron's log entries of this database's jobs that are older than the interval. Returns their
-- number. Entries of other jobs stay.
-- locks: none. writes: cron.job_run_details.
create or replace function pgque.purge_cron_log(i_older_than interval)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_purged bigint := 0;
begin
    if pgque.has_cron() then
        execute 'delete from cron.job_run_details d '
                'where d.database = current_database() '
                'and d.command ~ ''^call pgque[.](ticker|maint)_loop[(]'' '
                'and coalesce(d.end_time, d.start_time) < clock_timestamp() - $1'
        using i_older_than;
        get diagnostics v_purged = row_count;
    end if;
    return v_purged;
end;
$$;

-- Deletes pg_cron's log entries of our jobs that are older than a day. maint_operations lists it in the
-- first minute of each hour.
create or replace function pgque.maint_cron_log()
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.purge_cron_log('1 day');
end;
$$;
