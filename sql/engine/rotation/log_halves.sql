-- Shared functions of the logs with two halves (schema/log.sql).
--
-- Half 0 is current most of the time: maintenance switches back to it as soon as it is empty. So
-- the frequent statements read only half 0. In READ COMMITTED, what they find there is correct,
-- because
-- - a switch writes each position to both halves, and half 0 is not written while next_half is 1:
--   if the newest row in half 0 has next_half = 0, half 1 has no newer row;
-- - a tick is the same in both halves, each half has all ticks between its first and its last, and
--   the last tick in half 0 is the newest of all if pgque.log says that half 0 is current;
-- - a statement takes its snapshot after its locks, so a statement that waited for TRUNCATE sees
--   the switch.
-- For what they do not find there, a second statement reads both halves. In a stricter isolation
-- level they always read both: their snapshot may be older than a switch that they waited for.

-- Lets this transaction commit without waiting for a standby. Maintenance holds locks that other
-- sessions wait for, and no caller relies on its commit.
create or replace function pgque.commit_locally()
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') <> 'off';
end;
$$;

-- Sets how long the calling function waits for a lock on a log: 10 ms, which is not noticeable.
-- Overlapping transactions may keep it taken for longer, so one attempt in ten waits for 100 ms, and
-- one in a hundred for 800, which is less than the time after which PostgreSQL looks for a deadlock.
-- If this transaction has rotated, a consumer may wait for the event table and have the lock on the
-- log: then it waits for 1 ms.
create or replace function pgque.set_lock_wait()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_chance constant float := random();
begin
    perform set_config('lock_timeout', case
        when exists (select from pgque.queue q
                     where q.queue_switch_step1 = pg_current_xact_id_if_assigned()::text::bigint)
        then '1ms'
        when v_chance < 0.01 then '800ms'
        when v_chance < 0.1 then '100ms'
        else '10ms' end, true);
end;
$$;

-- The halves that a switch left, or that a rolled-back copy filled: they have to be emptied before the
-- next switch.
create or replace view pgque.left_half as
select l.log_name, l.half, h.half as left_half, l.switched_by
from pgque.log l
join pgque.log_rotation r on r.log_name = l.log_name and not r.is_copied
cross join lateral (select format('pgque.%s_log_%s', l.log_name, 1 - l.half)::regclass as half) h
where pg_relation_size(h.half) > 0;

-- Truncates the half that the last switch of a log left, once no session uses it and no snapshot needs it.
-- Returns 1 when it truncated the half.
-- locks: the log's row in log_rotation; the half, exclusively. writes: snapshot_wait; truncates the
-- half.
create or replace function pgque.maint_empty_half(i_log text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_left record;
begin
    if i_log is null or i_log not in ('position', 'tick') then
        perform pgque.refuse_value('log "%s" has no halves', i_log, 'Name position or tick.');
    end if;
    perform pgque.check_read_committed('compaction');
    perform from pgque.log_rotation r where r.log_name = i_log for update skip locked;
    if not found then
        return 0;
    end if;
    select h.* into v_left from pgque.left_half h where h.log_name = i_log;
    if not found or not pgque.is_seen_by_all(i_log, v_left.switched_by::text) then
        return 0;
    end if;

    perform pgque.commit_locally();
    perform pgque.set_lock_wait();
    execute format('lock table only %s in access exclusive mode', v_left.left_half);  -- quoted: by regclass
    if i_log = 'position' and pgque.move_positions(v_left.half) > 0 then
        -- A registration had not seen the last switch, so this is a later one.
        update pgque.log l set switched_by = pg_current_xact_id() where l.log_name = i_log;
        return 0;
    end if;
    execute format('truncate only %s', v_left.left_half);  -- quoted: by regclass
    return 1;
exception
    when lock_not_available then
        return 0;
end;
$$;
