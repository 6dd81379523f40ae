-- Waits for snapshots. TRUNCATE empties a table for old snapshots, too, and a dump takes its snapshot
-- first and its locks later. So rows that a change made unneeded are only truncated when no snapshot from
-- before the change is left.

-- Returns whether all snapshots see a change, such as a transaction's, so that unneeded rows may be
-- truncated. It is called again under the same name until it returns true. The first call for a change
-- records who holds a snapshot; if i_change is a transaction, it has to be in a later one. Autovacuum
-- does not count: it reads no event, and may take hours over a large table. A standby that reports its
-- snapshots (hot_standby_feedback) counts. It returns true after the snapshot patience in any
-- case. While it waits, it moves marked_by to its own transaction each minute: a report on a standby
-- that began after the change locks the tables as well, and the replay of a TRUNCATE would wait for it.
-- locks: none; the caller holds one under which nobody else uses this name. writes: snapshot_wait.
create or replace function pgque.is_seen_by_all(i_name text, i_change text)
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_wait      pgque.snapshot_wait;
    v_patience  interval := (select max(r.patience) from pgque.log_rotation r);
begin
    if i_change = pg_current_xact_id_if_assigned()::text then
        return false;
    end if;
    select w.* into v_wait from pgque.snapshot_wait w where w.wait_name = i_name;
    if v_wait.change is distinct from i_change then
        delete from pgque.snapshot_wait w where w.wait_name = i_name;
        insert into pgque.snapshot_wait as w (wait_name, change, holders)
        values (i_name, i_change, array(
            select l.virtualtransaction
            from pg_stat_activity a
            join pg_locks l on l.pid = a.pid and l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock'
            where a.datname = current_database()
              and a.backend_xmin is not null
              and a.backend_type is distinct from 'autovacuum worker'
              and a.pid <> pg_backend_pid()))
        returning w.* into v_wait;
    end if;
    if clock_timestamp() >= v_wait.began_at + v_patience
       or not exists (select from pg_locks l
                      where l.locktype = 'virtualxid' and l.virtualtransaction = any (v_wait.holders))
          and not exists (select
                          from (select r.backend_xmin as xmin from pg_stat_replication r
                                union all
                                select s.xmin from pg_replication_slots s) standby
                          where standby.xmin is not null
                            and (standby.xmin = v_wait.marked_by::xid
                                 or not pgque.is_written_since(standby.xmin, v_wait.marked_by))) then
        return true;
    end if;
    update pgque.snapshot_wait w
    set marked_by = pg_current_xact_id(), marked_at = clock_timestamp()
    where w.wait_name = i_name and w.marked_at < clock_timestamp() - interval '1 minute';
    return false;
end;
$$;
