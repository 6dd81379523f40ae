-- Lists what there is to maintain now, for schedulers that run each step in a transaction of its
-- own: functions with no or one argument, to be called again while they return more than 0, and
-- tables to vacuum.
create or replace function pgque.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql security definer
set lock_timeout = '1s'
as $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    return query
    select 'pgque.maint_rotate_tables_step1', q.queue_name
    from pgque.queue q
    where q.queue_switch_step2 is not null
      and clock_timestamp() - q.queue_switch_time >= pgque.rotation_interval(q)
      and pgque.event_bytes(q) > 0
    order by q.queue_name;
    if found or exists (select from pgque.queue q where q.queue_switch_step2 is null) then
        return query values ('pgque.maint_rotate_tables_step2', null::text);
    end if;

    return query
    select format('pgque.%s', s.func_name), null::text
    from (values
        ('maint_retry_events', exists (select from pgque.retry_queue r
                                       where r.ev_retry_after <= clock_timestamp())),
        ('maint_deliver_delayed', exists (
            select from pgque.queue q
            join pgque.delayed_events d on d.de_queue_name = q.queue_name
            where not q.queue_disable_insert and d.de_deliver_at <= v_now)),
        ('maint_idem', exists (select from pgque.idem i where i.expires_at <= v_now)),
        ('maint_staging', exists (select from pgque.removable_stagings())),
        ('maint_event_tables', exists (select from pgque.left_objects()))
    ) s (func_name, is_due)
    where s.is_due;
    return query
    select 'pgque.maint_empty_half', r.log_name
    from pgque.log_rotation r
    where r.left_at is not null
    union all
    select 'pgque.maint_rotate_metadata', d.log_name from pgque.rotation_due d;
    if exists (select from pgque.config c where c.scheduler = 'pg_cron')
       and date_part('minute', v_now) = 0 then
        return query values ('pgque.maint_cron_log', null::text);
    end if;
    return query select 'pgque.maint_addon', m from pgque.addon_maintenance() m;
    return query select 'vacuum', t from pgque.maint_tables_to_vacuum() t;
exception when lock_not_available then
    perform pgque.refuse_locked('maintenance', 'The next round tries again: let them end.');
end;
$$;

-- Lists the tables whose rows are changed in place, if the server runs no autovacuum. Events,
-- positions and ticks are not among them, because their tables are truncated.
create or replace function pgque.maint_tables_to_vacuum()
returns setof text
language plpgsql security definer
as $$
begin
    if current_setting('autovacuum')::boolean then
        return;
    end if;
    return query
    select format('pgque.%I', t)
    from unnest('{queue,config,consumer,subscription_base,retry_queue,dead_letter,tick_request,'
                      'tick_state,delayed_events,idem,staging,held_batch,'
                      'set_aside}'::text[]) t;
end;
$$;
