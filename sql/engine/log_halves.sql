-- Shared functions of the logs with two halves (schema/log.sql).
--
-- Half 0 is current most of the time: maintenance switches back to it as soon as it is empty. So
-- the frequent statements read half 0 alone. In READ COMMITTED, what they find there is right,
-- because
-- - a switch writes each position to both halves, and nobody writes to half 0 while next_half is 1:
--   if the newest row in half 0 has next_half = 0, half 1 has no newer row;
-- - a tick is the same in both halves, each half has all ticks between its first and its last, and
--   the last tick in half 0 is the newest of all if pgque.log says that half 0 is current;
-- - a statement takes its snapshot after its locks, so a statement that waited for TRUNCATE sees
--   the switch.
-- For what they do not find there, a second statement reads both halves. In a stricter isolation
-- level they always read both: their snapshot may be older than a switch that they waited for.

-- Lets this transaction commit without waiting for a standby. Maintenance holds locks that other
-- sessions wait for, and nobody relies on its commit: a standby that lags, or never answers, would
-- only delay those sessions.
create or replace function pgque.commit_locally()
returns void
language plpgsql
as $$
begin
    if current_setting('synchronous_commit') <> 'off' then
        perform set_config('synchronous_commit', 'local', true);
    end if;
end;
$$;

-- Sets how long the calling function waits for its locks: 10 ms, which nobody notices. Overlapping
-- transactions may keep a lock taken for longer than that, so after a minute of attempts it waits
-- 100 ms, and after ten minutes a second.
create or replace function pgque.wait_for_log(i_log text)
returns void
language plpgsql
as $$
begin
    perform set_config('lock_timeout',
                       case when r.tried_at < clock_timestamp() - interval '10 minutes' then '1s'
                            when r.tried_at < clock_timestamp() - interval '1 minute' then '100ms'
                            else '10ms' end, true)
    from pgque.log_rotation r
    where r.log_name = i_log;
end;
$$;

-- Records since when a log's locks have not been available.
-- locks: the log's row in log_rotation, if it is free. writes: log_rotation.
create or replace function pgque.note_attempt(i_log text)
returns void
language plpgsql
as $$
begin
    update pgque.log_rotation r
    set tried_at = clock_timestamp()
    where r.log_name = (select l.log_name from pgque.log_rotation l
                        where l.log_name = i_log and l.tried_at is null
                        for update skip locked);
exception
    when lock_not_available then  -- an upgrade has the table
        return;
end;
$$;

-- Refuses an unknown log name.
create or replace function pgque.check_log_name(i_log text)
returns void
language plpgsql
as $$
begin
    if not exists (select from pgque.log_rotation r where r.log_name = i_log) then
        perform pgque.refuse_value('there is no log "%s"', i_log,
                                   'Name one of counter, history, position and tick.');
    end if;
end;
$$;

-- The transactions of this database that hold a snapshot now. A transaction that begins later has a
-- newer snapshot. Autovacuum reads no event, and may take hours over a large table.
create or replace function pgque.snapshot_holders()
returns text[]
language plpgsql
as $$
begin
    return array(
        select l.virtualtransaction
        from pg_stat_activity a
        join pg_locks l on l.pid = a.pid and l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock'
        where a.datname = current_database()
          and a.backend_xmin is not null
          and a.backend_type is distinct from 'autovacuum worker'
          and a.pid <> pg_backend_pid());
end;
$$;

-- Whether a transaction may still read the half that a switch left: a transaction that held a
-- snapshot then, or one on a standby that reports its snapshots (hot_standby_feedback).
create or replace function pgque.is_snapshot_held(i_holders text[], i_left_by xid8)
returns boolean
language plpgsql
as $$
begin
    return exists (select from pg_locks l
                   where l.locktype = 'virtualxid' and l.virtualtransaction = any (i_holders))
        or exists (select
                   from (select r.backend_xmin as xmin from pg_stat_replication r
                         union all
                         select s.xmin from pg_replication_slots s) standby
                   where standby.xmin is not null
                     and (standby.xmin = i_left_by::xid
                          or not pgque.is_written_since(standby.xmin, i_left_by)));
end;
$$;

-- Truncates the half that the last switch of a log left, once nobody uses it and either no snapshot
-- needs it or the log's patience is over. The first call after the switch records who holds a
-- snapshot. While it waits for a snapshot, it moves left_by to its own transaction each minute, and
-- the snapshots of a standby have to be newer than that: a standby's reports that began after the
-- switch lock both halves as well, and replay of the TRUNCATE would wait for them. Returns 1 when
-- it truncated the half.
-- locks: the log's row in log_rotation; the half, exclusively. writes: log_rotation; truncates it.
create or replace function pgque.maint_empty_half(i_log text)
returns integer
language plpgsql security definer
set lock_timeout = '10ms'
as $$
declare
    v_log   record;
    v_half  regclass;
begin
    perform pgque.check_log_name(i_log);
    perform pgque.check_read_committed('compaction');
    select r.*, l.half into v_log
    from pgque.log_rotation r
    join pgque.log l on l.log_name = r.log_name
    where r.log_name = i_log and r.left_at is not null
    for update of r skip locked;
    if not found then
        return 0;
    end if;
    if v_log.left_by = pg_current_xact_id_if_assigned() then
        return 0;
    elsif v_log.holders is null then
        v_log.holders := pgque.snapshot_holders();
        update pgque.log_rotation r set holders = v_log.holders where r.log_name = i_log;
    end if;
    if clock_timestamp() < v_log.left_at + v_log.patience
       and pgque.is_snapshot_held(v_log.holders, v_log.left_by) then
        update pgque.log_rotation r
        set left_by = pg_current_xact_id(), marked_at = clock_timestamp()
        where r.log_name = i_log and r.marked_at < clock_timestamp() - interval '1 minute';
        return 0;
    end if;

    v_half := format('pgque.%s_log_%s', i_log, 1 - v_log.half);
    perform pgque.commit_locally();
    perform pgque.wait_for_log(i_log);
    execute format('lock table only %s in access exclusive mode', v_half);  -- quoted: by regclass
    if i_log = 'position' and pgque.move_positions(v_log.half) > 0 then
        perform pgque.note_switch(i_log);  -- a registration had not seen the last switch
        return 0;
    end if;
    execute format('truncate only %s', v_half);  -- quoted: by regclass
    update pgque.log_rotation r
    set left_at = null, left_by = null, marked_at = null, holders = null, tried_at = null
    where r.log_name = i_log;
    return 1;
exception
    when lock_not_available then
        perform pgque.note_attempt(i_log);
        return 0;
end;
$$;

-- Records that a log was switched just now, and left its other half.
-- locks: the log's row in log_rotation. writes: log_rotation.
create or replace function pgque.note_switch(i_log text)
returns void
language plpgsql
as $$
begin
    update pgque.log_rotation r
    set left_at = clock_timestamp(), left_by = pg_current_xact_id(),
        marked_at = clock_timestamp(), holders = null, is_copied = false, tried_at = null
    where r.log_name = i_log;
end;
$$;
