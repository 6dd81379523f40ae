-- Compaction of the two logs: the rows still needed are kept aside, the table is truncated and
-- they are written again. So a log leaves no dead tuple, whatever old snapshot is held. It waits at
-- most 100 ms for the exclusive lock, else the next maintenance tries again. A transaction whose
-- snapshot is older finds the log empty and is told to start again (find_tick, find_subscription).

-- Drops positions that were superseded, and those of ended registrations. Returns how many rows
-- went.
-- locks: position_log, exclusively. writes: position_log.
create or replace function pgque.maint_compact_positions()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_keep    pgque.position_log[];
    v_before  bigint;
begin
    perform pgque.check_read_committed('compaction');
    if pg_relation_size('pgque.position_log') < 65536 + 400 * (
           select count(*) from pgque.subscription_base) then
        return 0;
    end if;
    lock table pgque.position_log in access exclusive mode;

    select count(*) into v_before from pgque.position_log;
    v_keep := array(
        select l
        from pgque.subscription s
        join pgque.position_log l on l.sub_id = s.sub_id and l.pos_seq = s.pos_seq);
    truncate pgque.position_log;
    insert into pgque.position_log select (unnest(v_keep)).*;
    return v_before - cardinality(v_keep);
exception
    when lock_not_available then
        return 0;
end;
$$;

-- Drops the ticks that every consumer has behind it. Runs when they are more than those that stay,
-- so that the copying costs each tick a constant, however far a consumer lags. Returns how many
-- went.
-- locks: tick, exclusively, so that no consumer registers meanwhile. writes: tick, history.
create or replace function pgque.maint_compact_ticks()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_keep    pgque.tick[];
    v_before  bigint;
    v_kept    bigint;
begin
    perform pgque.check_read_committed('compaction');
    select count(*), count(*) filter (where is_needed)
    into v_before, v_kept
    from pgque.tick_retention;
    if v_before - v_kept <= greatest(v_kept, 1000) then
        return 0;
    end if;
    lock table pgque.tick in access exclusive mode;

    perform pgque.keep_tick_history();
    v_keep := array(select r.tick from pgque.tick_retention r where r.is_needed);
    truncate pgque.tick;
    insert into pgque.tick select (unnest(v_keep)).*;
    return v_before - cardinality(v_keep);
exception
    when lock_not_available then
        return 0;
end;
$$;

-- Each tick, and whether a consumer still needs it. A queue keeps its last two in any case: the
-- newest is where the next tick and the next registration start, both give the rate.
create or replace view pgque.tick_retention as
select t as tick,
       coalesce(t.tick_id >= f.first_needed, false) as is_needed
from pgque.tick t
left join (
    select q.queue_id,
           least((select min(s.sub_last_tick) from pgque.subscription s where s.sub_queue = q.queue_id),
                 (select max(l.tick_id) - 1 from pgque.tick l where l.tick_queue = q.queue_id))
           as first_needed
    from pgque.queue q
) f on f.queue_id = t.tick_queue;
