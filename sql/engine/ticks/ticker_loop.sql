-- Procedures that work during one slot of a scheduler and commit after each step. A procedure that
-- commits cannot pin its search_path, so these leave all computation to functions that pin theirs.

-- Returns the end of a slot that began at a given time. Slots of a minute or more belong to a cron,
-- which starts jobs on the minute, so they count from the minute; shorter ones count from their
-- start.
create or replace function pgque.slot_end(i_start timestamptz, i_slot interval)
returns timestamptz
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_slot is null or i_slot < '0' then
        perform pgque.refuse_value('a slot cannot last %s', i_slot::text,
                                   'Give an interval of 0 or more, such as ''1 minute''.');
    end if;
    return case when i_slot >= '1 minute' then date_trunc('minute', i_start) else i_start end
           + i_slot;
end;
$$;

-- Begins a slot: returns its start, its end and the current pg_cron job.
create or replace function pgque.begin_slot(
    i_slot interval, out starts timestamptz, out ends timestamptz, out job_id bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '5s'
as $$
begin
    starts := clock_timestamp();
    ends := pgque.slot_end(starts, i_slot);
    job_id := (select c.ticker_job_id from pgque.config c);
exception when lock_not_available then
    perform pgque.refuse_locked('the slot', 'The next slot tries again: let them end.');
end;
$$;

-- Returns when to work next in a slot: one period after the last time (a null period means the period
-- of ticks). Returns null if the slot is over or stop() was called. Late work delays the following
-- work and is not followed by a burst.
create or replace function pgque.next_beat(
    i_last timestamptz, i_period interval, i_ends timestamptz, i_job_id bigint)
returns timestamptz
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '5s'
as $$
declare
    v_config  pgque.config;
    v_next    timestamptz;
begin
    select * into v_config from pgque.config;
    v_next := greatest(
        i_last + coalesce(i_period, make_interval(secs => v_config.tick_period_ms / 1000.0)),
        clock_timestamp());
    if v_config.ticker_job_id is distinct from i_job_id or v_next >= i_ends then
        return null;
    end if;
    return v_next;
exception when lock_not_available then
    perform pgque.refuse_locked('the slot', 'The next slot tries again: let them end.');
    return null;
end;
$$;

-- Ticks for one slot of a scheduler. Each tick is committed separately, so that no tick waits for
-- another and no snapshot is held longer than a period. It runs in READ COMMITTED even if the session's
-- default differs. A tick that fails does not end the slot; the slot raises the last error at its
-- end.
-- locks: none between ticks. writes: what ticker writes.
create or replace procedure pgque.ticker_loop(i_slot interval)
language plpgsql as $$
declare
    v_slot     constant record := pgque.begin_slot(i_slot);
    v_due      pg_catalog.timestamptz := v_slot.starts;
    v_state    pg_catalog.text;
    v_message  pg_catalog.text;
    v_hint     pg_catalog.text;
begin
    commit;
    set transaction isolation level read committed;
    loop
        begin
            perform pgque.ticker();
        exception
            when others then
                get stacked diagnostics v_state = returned_sqlstate,
                    v_message = message_text, v_hint = pg_exception_hint;
        end;
        commit and chain;
        v_due := pgque.next_beat(v_due, null, v_slot.ends, v_slot.job_id);
        exit when v_due is null;
        perform pg_catalog.pg_sleep_until(v_due);
    end loop;
    if v_state is not null then
        raise exception using
            errcode = v_state, message = v_message, hint = pgque.next_run_hint(v_hint);
    end if;
end;
$$;

-- Does the same with the configured slot (ticker_slot).
-- locks: none between ticks. writes: what ticker writes.
create or replace procedure pgque.ticker_loop()
language plpgsql as $$
declare
    v_pace constant record := pgque.ticker_pace();
begin
    call pgque.ticker_loop(v_pace.ticker_slot);
end;
$$;
