-- Does all maintenance in one call, for any scheduler: rotation of events, retries, delayed events
-- that are due, expired idempotency keys, what dead writers left, rotation of the logs. Returns how
-- many things it did. What it cannot lock within a second, it leaves for the next call. A step that fails stops no
-- other step and raises a warning; if nothing else was done, the call fails with its error. Ticks
-- are copied first, so that no lock is held during the copy. The logs are switched last, since
-- their locks are kept until commit. The half with the old ticks is emptied after that, since
-- readers wait for its lock, and event tables are dropped at the very end, since producers wait for
-- theirs. Call it in a transaction of its own: a transaction that switches a log commits without
-- waiting for a synchronous standby.
-- locks: those of the functions it calls. writes: the same.
create or replace function pgque.maint()
returns integer
language plpgsql security definer
set lock_timeout = '1s'
as $$
declare
    v_step     record;
    v_done     bigint := 0;
    v_state    text;
    v_message  text;
    v_hint     text;
begin
    perform pgque.check_read_committed('maintenance');
    perform pgque.check_adopted();
    for v_step in select s.func_name, s.func_arg from pgque.maint_steps() s loop
        begin
            v_done := v_done + pgque.run_maintenance(format('pgque.%s', v_step.func_name),
                                                     v_step.func_arg);
        exception
            when others then
                get stacked diagnostics v_state = returned_sqlstate,
                    v_message = message_text, v_hint = pg_exception_hint;
                if v_hint operator(pg_catalog.=) '' then
                    v_hint := 'The next run tries it again. A standby takes no writes: run it on the primary.';
                end if;
                v_message := format('%s: %s', v_step.func_name, v_message);
                raise warning using errcode = v_state, message = v_message, hint = v_hint;
        end;
    end loop;
    if v_done = 0 and v_state is not null then
        raise exception using errcode = v_state, message = v_message, hint = v_hint;
    end if;
    return v_done;
end;
$$;

-- Lists the steps of maint, in their order.
create or replace function pgque.maint_steps(out func_name text, out func_arg text)
returns setof record
language plpgsql stable
as $$
begin
    return query
    select 'maint_copy_ticks', null::text
    where exists (select from pgque.rotation_due d where d.log_name = 'tick')
    union all
    values ('maint_rotate_tables_step2', null);
    return query
    select 'maint_rotate_tables_step1', q.queue_name
    from pgque.queue q
    where clock_timestamp() - q.queue_switch_time >= pgque.rotation_interval(q)
      and pgque.event_bytes(q) > 0
    order by q.queue_id;
    return query
    values ('maint_retry_events', null::text), ('maint_deliver_delayed', null),
           ('maint_idem', null), ('maint_staging', null),
           ('maint_rotate_metadata', 'history'), ('maint_rotate_metadata', 'counter'),
           ('maint_rotate_metadata', 'tick'), ('maint_empty_half', 'position'),
           ('maint_rotate_metadata', 'position'), ('maint_empty_half', 'tick'),
           ('maint_event_tables', null);
    return query select 'maint_addon', m from pgque.addon_maintenance() m;
end;
$$;
