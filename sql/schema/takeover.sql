-- Returns the statements that take the locks of lock_tables, in their order.
create or replace function pgque.table_locks(i_with_events boolean)
returns text[]
language plpgsql stable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return array(
    select case c.relkind
        when 'v' then format('alter view pgque.%I owner to current_user', c.relname)
        when 'm' then format('alter materialized view pgque.%I owner to current_user', c.relname)
        else format('lock table only pgque.%I in access exclusive mode', c.relname) end
    from pg_class c
    where c.relnamespace = 'pgque'::regnamespace
      and c.relkind in ('r', 'v', 'm', 'p')
      and (i_with_events or c.relname !~ '^event')
    order by array_position(array['config', 'queue'], c.relname::text) nulls last,
             c.relkind desc, c.relname);
end;
$$;

-- Names the sessions and prepared transactions that began longer than i_age ago, as far as we may see
-- that, and hold a lock on one of our tables whose name matches, or are among i_transactions (virtual
-- transaction ids); null if there are none.
create or replace function pgque.lock_holders(
    i_tables text, i_transactions text[], i_age interval)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (
    select string_agg(distinct coalesce('session ' || l.pid, 'a prepared transaction'), ', ')
    from pg_locks l
    left join pg_class c on c.oid = l.relation and c.relnamespace = 'pgque'::regnamespace
         and c.relkind in ('r', 'p', 'v', 'm') and c.relname ~ i_tables
         and l.database = (select d.oid from pg_database d where d.datname = current_database())
    left join pg_stat_activity a on a.pid = l.pid
    where l.granted
      and (c.oid is not null
           or l.locktype = 'virtualxid' and l.virtualtransaction = any (i_transactions))
      and (a.xact_start > clock_timestamp() - i_age) is not true
      and l.pid is distinct from pg_backend_pid());
end;
$$;

-- Raises the error for a lock that was not free in time, with the sessions that have held locks on
-- the queues' tables for at least the lock_timeout.
create or replace function pgque.refuse_locked(i_what text, i_hint text)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = 'lock_not_available',
        message = format('transactions that are open on the queues hold %s up: %s', i_what, coalesce(
            pgque.lock_holders('', null, current_setting('lock_timeout')::interval),
            'they have just ended')),
        hint = format('These are process ids (pg_stat_activity). %s', i_hint);
end;
$$;

-- Takes every lock that an installation needs; with i_with_events also those on the event tables, which
-- an uninstall needs. Waiting for one lock while holding others would end in deadlocks. So this
-- function asks for all locks and, if one is not free, releases all and tries again, for a minute or
-- the session's lock_timeout; also if a table was created or dropped meanwhile. Most attempts wait for
-- 10 ms at most; every tenth waits for up to 800 ms, which is less than the time after which PostgreSQL
-- looks for a deadlock. The tables config and queue come first: nearly every call reads them before
-- others, so new calls wait without holding locks while transactions that are open go on.
-- locks: all tables and views, exclusively. writes: nothing.
create or replace function pgque.lock_tables(i_with_events boolean)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_timeout  constant text := current_setting('lock_timeout');
    v_give_up  constant timestamptz := clock_timestamp()
                   + coalesce(nullif(v_timeout::interval, '0'), '1 minute');
    v_locks    text[];
    v_lock     text;
    v_until    timestamptz;
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

    perform pgque.refuse_locked(
        'this', 'Nothing was changed: let them end and try again; set lock_timeout to wait '
                'longer than a minute.');
end;
$$;

-- What an earlier version had, from 0.3.0 on, and this version has not, or with other arguments. Other
-- functions of 0.3 that are gone (tests/engine/test_upgrade.py has their names) stay in the database: a
-- session that waits for this upgrade may call them next. Version 0.5 drops them.
do $$
declare
    v_function regprocedure;
begin
    if to_regclass('pgque.config') is null then
        return;
    end if;
    perform pgque.lock_tables(false);
    for v_function in
        select p.oid
        from pg_proc p
        where p.pronamespace = 'pgque'::regnamespace
          and p.proname = any (array[
              'append_slot', 'assert_dlq_empty', 'assert_empty', 'begin_slot_batch',
              'capture', 'capture_condition', 'capture_gap', 'capture_truncate', 'carry_over', 'check_captured', 'close_slot_batch', 'consumer_states',
              'count_unfinished', 'deliver_due', 'drop_expired_held', 'due_events', 'earlier_held',
              'enter_deployment', 'find_in_page',
              'find_leased_slot', 'find_slot', 'finish_page', 'follow_switch',
              'has_expired_held', 'has_held_events', 'held_batch_events', 'hold_batch',
              'hold_next_in_page', 'is_changed_within',
              'latency_percentiles', 'maint_steps', 'move_event_tables', 'move_failures',
              'move_to_deployment',
              'open_page', 'plan_held', 'retention_cost', 'run_maintenance',
              'set_metadata_rotation_period', 'slot_backlog', 'slot_rows', 'slot_select',
              'stop_slots', 'table_shape', 'test_consume', 'test_send', 'tick_select', 'subscribe_slot_at',
              'register_slots', 'set_apart', 'set_replicated', 'tables_apart', 'write_position', 'xmin_health'])
    loop
        execute format('drop function %s', v_function);  -- quoted: by regprocedure
    end loop;
    drop view if exists pgque.xmin_holder;
end;
$$;
