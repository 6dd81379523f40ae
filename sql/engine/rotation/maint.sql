-- Lists the due steps of maintenance in their order. Ticks are copied first, so that no lock is held
-- during the copy. The logs are switched late, because in maint() their locks are kept until commit.
-- The half with the old ticks is emptied after that, because readers wait for its lock, and event
-- tables are dropped even later, because producers wait for theirs.
create or replace function pgque.maint_steps(out func_name text, out func_arg text)
returns setof record
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    return query
    select 'maint_copy_ticks', null::text
    where exists (select from pgque.rotation_due d where d.log_name = 'tick');
    return query
    select 'maint_rotate_tables_step2', null::text
    where exists (select from pgque.queue q where q.queue_switch_step2 is null);
    return query
    select 'maint_rotate_tables_step1', q.queue_name
    from pgque.queue q
    where clock_timestamp() - q.queue_switch_time >= pgque.rotation_interval(q)
      and pgque.event_bytes(q) > 0
    order by q.queue_id;
    if found then
        return query values ('maint_rotate_tables_step2', null::text);
    end if;
    return query
    select s.func_name, null::text
    from (values
        ('maint_retry_events', exists (select from pgque.retry_queue r
                                       where r.ev_retry_after <= v_now)),
        ('maint_deliver_delayed', exists (
            select from pgque.queue q
            join pgque.delayed_events d on d.de_queue_name = q.queue_name
            where not q.queue_disable_insert and d.de_deliver_at <= v_now)),
        ('maint_idem', exists (select from pgque.idem i where i.expires_at <= v_now)),
        ('maint_staging', exists (select from pgque.removable_staging)),
        ('maint_cron_log', date_part('minute', v_now) = 0
                           and exists (select from pgque.config c where c.scheduler = 'pg_cron'))
    ) s (func_name, is_due)
    where s.is_due;
    return query
    select s.func_name, s.func_arg
    from (values
        ('maint_compact_counters', null, 'counter'), ('maint_compact_ticks', null, 'tick'),
        ('maint_empty_half', 'position', null), ('maint_compact_positions', null, 'position'),
        ('maint_empty_half', 'tick', null)
    ) s (func_name, func_arg, due_log)
    where s.due_log in (select d.log_name from pgque.rotation_due d)
       or s.func_arg in (select h.log_name from pgque.left_half h);
    return query
    select 'maint_event_tables', null::text where exists (select from pgque.left_object);
    return query select 'maint_addon', m.addon_name from pgque.addon_maintenance m order by 2;
end;
$$;

-- Lists the maintenance to do now, for schedulers that run each step in its own transaction:
-- functions with no or one argument, to be called again while they return more than 0, and tables to
-- vacuum.
create or replace function pgque.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
begin
    return query select format('pgque.%s', s.func_name), s.func_arg from pgque.maint_steps() s;
    return query select 'vacuum', t from pgque.maint_tables_to_vacuum() t;
exception when lock_not_available then
    perform pgque.refuse_locked('maintenance', 'The next round tries again: let them end.');
end;
$$;

-- Lists the tables whose rows are changed in place, if the server runs no autovacuum. Tables of events,
-- positions and ticks are not among them, because they are truncated.
create or replace function pgque.maint_tables_to_vacuum()
returns setof text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if current_setting('autovacuum')::boolean then
        return;
    end if;
    return query
    select format('pgque.%I', t)
    from unnest('{queue,config,consumer,subscription_base,retry_queue,dead_letter,tick_request,'
                      'tick_state,delayed_events,idem,staging,held_batch,'
                      'set_aside,counter_log,history,replica_position}'::text[]) t;
end;
$$;

-- Runs a function that maint_operations names. Returns how many things it did; above 0 it has to be
-- called again. Skips vacuum, which no procedure can run.
-- locks: those of the function. writes: the same.
create or replace function pgque.run_maintenance(i_func_name text, i_func_arg text)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_name  text := substring(i_func_name from '^pgque[.](maint_.*)');
    v_done  bigint;
begin
    if v_name is null then
        return 0;
    end if;
    execute format('select pgque.%I(%s)',  -- quoted: a literal, or nothing
                   v_name, quote_literal(i_func_arg)) into v_done;
    return coalesce(v_done, 0);
exception when lock_not_available then
    perform pgque.refuse_locked('this step', 'The next round tries again: let them end.');
    return null;
end;
$$;

-- Returns the hint of an error that ended a step, or otherwise what to do next.
create or replace function pgque.next_run_hint(i_hint text)
returns text
language plpgsql immutable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return coalesce(nullif(i_hint, ''), 'The next run tries it again. A standby accepts no writes: run '
                                'it on the primary.');
end;
$$;

-- Does all maintenance in one call, for any scheduler. Returns how many things it did. What it cannot
-- lock within a second waits for the next call. Its steps are independent: one that fails raises a
-- warning, and its error fails the call only if nothing else was done. Call it in its own transaction:
-- a transaction that switches a log commits without waiting for a synchronous standby.
-- locks: those of the functions it calls. writes: the same.
create or replace function pgque.maint()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
    v_step     record;
    v_done     bigint := 0;
    v_state    text;
    v_message  text;
    v_hint     text;
begin
    perform pgque.check_read_committed('maintenance');
    begin
        perform pgque.check_adopted();
    exception when lock_not_available then
        perform pgque.refuse_locked('maintenance', 'The next call tries again: let them end.');
    end;
    for v_step in select s.func_name, s.func_arg from pgque.maint_steps() s loop
        begin
            v_done := v_done + pgque.run_maintenance(format('pgque.%s', v_step.func_name),
                                                     v_step.func_arg);
        exception
            when others then
                get stacked diagnostics v_state = returned_sqlstate,
                    v_message = message_text, v_hint = pg_exception_hint;
                v_message := format('%s: %s', v_step.func_name, v_message);
                v_hint := pgque.next_run_hint(v_hint);
                raise warning using errcode = v_state, message = v_message, hint = v_hint;
        end;
    end loop;
    if v_done = 0 and v_state is not null then
        raise exception using errcode = v_state, message = v_message, hint = v_hint;
    end if;
    return v_done;
end;
$$;
