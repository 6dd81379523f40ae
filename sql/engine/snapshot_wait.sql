-- Whether all snapshots see what a transaction has committed, so that an add-on may truncate what
-- nobody needs since then. Called again under the same name until it returns true: the first call,
-- in a later transaction, records who holds a snapshot. It returns true after the snapshot patience
-- in any case. While it waits, it moves marked_by to its own transaction each minute, as
-- maint_empty_half does: a report on a standby that began after the change locks the tables as
-- well, and the replay of a TRUNCATE would wait for it.
-- locks: none; the caller holds one under which nobody else asks for this name. writes:
-- snapshot_wait.
create or replace function pgque.is_seen_by_all(i_name text, i_change_by xid8)
returns boolean
language plpgsql
as $$
declare
    v_wait      pgque.snapshot_wait;
    v_patience  interval := (select max(r.patience) from pgque.log_rotation r);
begin
    if i_change_by = pg_current_xact_id_if_assigned() then
        return false;
    end if;
    select w.* into v_wait from pgque.snapshot_wait w where w.wait_name = i_name;
    if v_wait.change_by is distinct from i_change_by then
        delete from pgque.snapshot_wait w where w.wait_name = i_name;
        insert into pgque.snapshot_wait as w (wait_name, change_by, holders)
        values (i_name, i_change_by, pgque.snapshot_holders())
        returning w.* into v_wait;
    end if;
    if clock_timestamp() >= v_wait.began_at + v_patience
       or not pgque.is_snapshot_held(v_wait.holders, v_wait.marked_by) then
        return true;
    end if;
    update pgque.snapshot_wait w
    set marked_by = pg_current_xact_id(), marked_at = clock_timestamp()
    where w.wait_name = i_name and w.marked_at < clock_timestamp() - interval '1 minute';
    return false;
end;
$$;
