-- An installation over an existing one continues as the role that owns it, so that all objects keep
-- one owner: our own functions are closed to all other roles.
do $$
declare
    v_owner constant text := (select n.nspowner::regrole::text from pg_namespace n
                              where n.nspname = 'pgque');
begin
    if to_regrole(v_owner) = current_user::regrole then
        return;
    elsif not pg_has_role(to_regrole(v_owner), 'member') then
        raise exception using
            errcode = 'insufficient_privilege',
            message = format('pgque belongs to %s, and %s is not a member of that role',
                             v_owner, current_user),
            hint = format('Install as %s, or as a superuser.', v_owner);
    end if;
    execute format('set local role %s', v_owner);  -- quoted: by regrole
end;
$$;

-- Returns the statements that take the locks of lock_tables, in their order.
-- locks: none. writes: nothing.
create or replace function pgque.table_locks(i_with_events boolean)
returns text[]
language plpgsql stable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return array(
        select case when c.relkind = 'v'
            then format('alter view pgque.%I owner to current_user', c.relname)
            when c.relkind = 'm'
            then format('alter materialized view pgque.%I owner to current_user', c.relname)
            else format('lock table only pgque.%I in access exclusive mode', c.relname) end
        from pg_class c
        where c.relnamespace = 'pgque'::regnamespace
          and c.relkind in ('r', 'v', 'm', 'p')
          and (i_with_events or c.relname !~ '^event' or to_regclass('pgque.event') is null)
        order by array_position(array['config', 'queue'], c.relname::text) nulls last,
                 c.relkind desc, c.relname);
end;
$$;

-- Takes every lock that an installation needs; with i_with_events also those on the event tables,
-- which an uninstall needs. An installation changes only event tables of an earlier version,
-- which are not in pgque.event. Sessions that use the queue take their locks in various orders,
-- so waiting for one lock while holding others would end in deadlocks. So this function asks for
-- all locks and, if one is not free, releases all and tries again, for a minute or the session's
-- lock_timeout. It also tries again if a table was created or dropped meanwhile. Its error names
-- the sessions that hold the locks. Most attempts wait for 10 ms at most; every tenth waits for
-- up to 800 ms, which is less than the time after which PostgreSQL looks for a deadlock (a
-- second). The tables config and queue come first: nearly every call reads them before others, so
-- new calls wait without holding locks while transactions that are open go on.
-- locks: all tables and views, exclusively. writes: nothing.
create or replace function pgque.lock_tables(i_with_events boolean)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_timeout  constant text := current_setting('lock_timeout');
    v_give_up  constant timestamptz := clock_timestamp()
                   + coalesce(nullif(v_timeout::interval, '0'), '1 minute');
    v_locks    text[];
    v_lock     text;
    v_until    timestamptz;
    v_holders  text;
begin
    for v_attempt in 1 .. 1000000 loop
        v_until := least(v_give_up, clock_timestamp() + case when v_attempt % 10 = 0
                         then interval '800 ms' else interval '10 ms' end);
        v_locks := pgque.table_locks(i_with_events);
        begin
            foreach v_lock in array v_locks loop
                perform set_config('lock_timeout', greatest(1, floor(1000 * extract(
                    epoch from v_until - clock_timestamp())))::text, true);
                execute v_lock;
            end loop;
            if v_locks <> pgque.table_locks(i_with_events) then
                raise exception using errcode = 'lock_not_available';
            end if;
            perform set_config('lock_timeout', v_timeout, true);
            return;
        exception
            when lock_not_available or undefined_table then
                null;  -- all locks are released
        end;
        exit when clock_timestamp() >= v_give_up;
        perform pg_sleep(0.02 * random());
    end loop;

    select string_agg(distinct coalesce(l.pid::text, 'a prepared transaction'), ', ')
    into v_holders
    from pg_locks l
    join pg_class c on c.oid = l.relation and c.relnamespace = 'pgque'::regnamespace
    where l.granted
      and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database());
    raise exception using
        errcode = 'lock_not_available',
        message = format('transactions that are open on the queues hold this up: %s',
                         coalesce(v_holders, 'they ended just now')),
        hint = 'These are process ids (pg_stat_activity). Nothing was changed: let them end and try '
               'again; set lock_timeout for another patience than a minute.';
end;
$$;

do $$
begin
    if to_regclass('pgque.config') is not null then
        perform pgque.lock_tables(false);
    end if;
end;
$$;

-- Drops the functions of earlier versions that CREATE OR REPLACE would refuse to change, or would
-- leave beside the new ones: those that are gone, those that had other arguments, and those that
-- returned fewer columns, without the named one.
do $$
declare
    v_old regprocedure;
begin
    for v_old in
        select p.oid
        from pg_proc p
        left join (values
            ('batch_read_plan(bigint, integer)', 'newest_event'),
            ('claim_ticks(text, text, text, interval, bigint, bigint, bigint)', null),
            ('dead_letter_batch(bigint, bigint[], text)', null),
            ('dlq_replay_matching(text, text, text, timestamptz, timestamptz, integer)', null),
            ('dlq_summary(text)', 'max_id'),
            ('keep_tick_history()', null),
            ('nack_batch(bigint, bigint[], interval, text)', null),
            ('open_coop_batch(text, text, text, interval, integer, interval, interval)', null),
            ('plan_slices(text[], text, integer)', 'newest_event'),
            ('register_slots(text, text, integer, integer, integer)', null),
            ('settle_events(bigint, bigint[], timestamptz, integer, text)', null),
            ('tick_range_read_plan(text, bigint, bigint, integer, text)', 'newest_event')
        ) f (signature, new_column) on p.oid = to_regprocedure('pgque.' || f.signature)
        where p.pronamespace = 'pgque'::regnamespace
          and (p.proname = any (array[
                   'batch_metrics', 'build_read_function', 'build_tables_function', 'calling_role',
                   'check_logs_complete', 'check_may_claim', 'check_option_type', 'complete_tick_copy',
                   'consumer_metrics', 'create_event_tables', 'deliver_singly', 'find_fingerprint', 'floor_obstacle',
                   'give_up_held', 'half_table', 'hold_event', 'insert_fragment', 'json_change_type',
                   'page_select', 'queue_metrics', 'refuse_to_wait', 'retries_left', 'slice_sql', 'unread_queues'])
               or f.signature is not null
               and p.proargnames @> array[f.new_column] is not true)
    loop
        execute format('drop function %s', v_old);  -- quoted: by regprocedure
    end loop;
end;
$$;
