-- Floors: where the search for the next messages begins.
--
-- Rows of finished messages stay until TRUNCATE, which may have to wait for old snapshots. If
-- consumers stepped over them, each call would take longer than the last. So a floor of a queue says
-- which rows need not be looked at. It has a position among the new messages, which are ordered by
-- transaction and id, and one among the others, which are ordered by due_at. It was computed with a
-- snapshot, and it is right because each row at or before a position
-- - was superseded for that snapshot, or is listed in the floor (open_*, due_*);
-- - or was inserted by a transaction that was in progress then: these are listed as late, and are
--   looked up by their ids;
-- - and no later transaction inserts one: its id is higher than those of the first position, and the
--   barrier, which was moved ahead of the second position before the snapshot was taken, is the
--   least due_at that it may use. A transaction reads the barrier after it has got its id.
-- So a floor never hides a message, however late a publisher or a prepared transaction commits. It
-- need not be the newest to be right. A rollback takes it back with the claims that it counted in.

-- Microseconds since 1970, for times of every year; the number of times after the year 290000 is that
-- of one of them, and 'infinity' is the largest number.
create or replace function postgremq.micros(i_time timestamptz)
returns bigint
language sql stable
as $$
    select case when pg_catalog.isfinite(i_time)
                then least(pg_catalog.date_part('epoch', i_time) operator(pg_catalog.*) 1000000,
                           9.2e18::pg_catalog.float8)::pg_catalog.int8
                when i_time operator(pg_catalog.>) '-infinity' then 9223372036854775807
                else 0 end
$$;

-- The due_at of a row that becomes visible at i_vt. The caller's transaction must have an id before
-- it calls this. A message without attempts left is due never. No limit is 0 or less: the last 31 bits
-- of that minus one are a number that attempts do not reach. It names i_max once, as otherwise a call
-- with a subquery is not inlined, and parsing it takes longer than the claim.
create or replace function postgremq.due(i_vt timestamptz, i_attempts integer, i_max integer)
returns bigint
language sql
as $$
    select case when (i_attempts operator(pg_catalog.-) 1)
                     operator(pg_catalog.>=) ((greatest(i_max, 0) operator(pg_catalog.-) 1)
                                              operator(pg_catalog.&) 2147483647)
                then 9223372036854775807
                else greatest(postgremq.micros(i_vt),
                              pg_catalog.pg_sequence_last_value('postgremq.barrier')) end
$$;

-- Moves the barrier ahead of the time that it returns, or returns null if another session is moving
-- it now. The lock must end at once, not with the caller's transaction, so it is taken in a
-- subtransaction that is rolled back; setval is not rolled back.
-- locks: the row of barrier_lock, for microseconds and without waiting. writes: barrier.
create or replace function postgremq.move_barrier()
returns bigint
language plpgsql
as $$
declare
    v_now  bigint := date_part('epoch', clock_timestamp()) * 1000000;
begin
    begin
        perform from postgremq.barrier_lock b for update nowait;
        perform setval('postgremq.barrier',
                       greatest(pg_sequence_last_value('postgremq.barrier'), v_now + 1));
        raise exception using errcode = 'triggered_action_exception';
    exception
        when triggered_action_exception then
            return v_now;
        when lock_not_available then
            return null;
    end;
end;
$$;

-- The newest floor of a queue, or one before all rows. A floor of another cluster says nothing about
-- this one: pgque.origin is new after a restore.
create or replace function postgremq.find_floor(i_queue_id integer)
returns postgremq.floor
language plpgsql
as $$
declare
    v_floor postgremq.floor%rowtype;
begin
    select f.* into v_floor
    from postgremq.floor f
    where f.queue_id operator(pg_catalog.=) i_queue_id
    order by f.floor_no desc
    limit 1;
    if v_floor.origin_id operator(pg_catalog.=) (select o.origin_id from pgque.origin o) then
        return v_floor;
    end if;
    v_floor.queue_id := i_queue_id;
    v_floor.new_txid := '0';
    v_floor.new_id := 0;
    v_floor.due_at := -1;
    v_floor.late := '{}';
    v_floor.open_txids := '{}';
    v_floor.open_ids := '{}';
    v_floor.due_times := '{}';
    v_floor.due_ids := '{}';
    return v_floor;
end;
$$;

-- The transactions that a floor lists as late and that have ended since. The rows of others are not
-- visible, and a search would step over all of them.
create or replace function postgremq.ended_since(i_floor postgremq.floor)
returns setof xid8
language sql stable
as $$
    select late.txid from pg_catalog.unnest(i_floor.late) late(txid)
    where pg_catalog.pg_visible_in_snapshot(late.txid, pg_catalog.pg_current_snapshot())
$$;

-- The open rows in front of a floor: those of the transactions that it lists as late, and those that it
-- lists themselves. Of each late transaction at most i_limit new messages, and as many others, visible
-- at i_until. A row may come twice.
create or replace function postgremq.listed_rows(
    i_floor postgremq.floor, i_until timestamptz, i_limit bigint)
returns setof postgremq.state
language plpgsql
as $$
begin
    if cardinality(i_floor.late) > 0 then
        return query
        select s.* from postgremq.ended_since(i_floor) late(txid)
        cross join lateral (
            select s.* from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
              and s.txid = late.txid
              and (s.txid, s.message_id) <= (i_floor.new_txid, i_floor.new_id)
            order by s.txid, s.message_id
            limit i_limit) s;
        return query
        select s.* from postgremq.ended_since(i_floor) late(txid)
        cross join lateral (
            select s.* from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null and s.txid = late.txid
              and s.due_at <= i_floor.due_at and s.vt <= i_until
            order by s.due_at + 0, s.message_id  -- not in the order of the index over all transactions
            limit i_limit) s;
    end if;
    if cardinality(i_floor.open_ids) > 0 then
        return query
        select s.* from unnest(i_floor.open_txids, i_floor.open_ids) o(txid, id)
        cross join lateral (
            select s.* from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
              and s.txid = o.txid and s.message_id = o.id
            limit 1) s;
    end if;
    if cardinality(i_floor.due_ids) > 0 then
        return query
        select s.* from unnest(i_floor.due_times, i_floor.due_ids) o(due_at, id)
        cross join lateral (
            select s.* from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null and s.due_at = o.due_at
              and s.message_id = o.id and s.vt <= i_until
            limit 1) s;
    end if;
end;
$$;

-- The rows that a new floor after i_floor would have to list: the open new messages up to the given
-- position, the open others up to i_due, and those of listed_rows. At most 501 of each kind. A row may
-- come twice.
create or replace function postgremq.rows_below(
    i_floor postgremq.floor, i_txid xid8, i_id integer, i_due bigint)
returns setof postgremq.state
language plpgsql
as $$
begin
    return query
    select s.* from postgremq.open_state s
    where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
      and (s.txid, s.message_id) > (i_floor.new_txid, i_floor.new_id)
      and (s.txid, s.message_id) <= (i_txid, i_id)
    order by s.txid, s.message_id
    limit 501;
    return query
    select s.* from postgremq.open_state s
    where s.queue_id = i_floor.queue_id and s.due_at is not null
      and s.due_at > i_floor.due_at and s.due_at <= i_due
    order by s.due_at, s.message_id
    limit 501;
    return query select * from postgremq.listed_rows(i_floor, 'infinity', 501);
end;
$$;

-- Writes a new floor after i_floor: behind the new message at the given position, and behind all
-- that is due now. If more than 500 messages in front of a position are open, the position is put
-- in front of them instead. Does nothing in a transaction stricter than READ COMMITTED, whose
-- snapshot is older than the barrier, and where positions come from another cluster, whose
-- transaction ids may be higher.
-- locks: those of move_barrier. writes: floor, barrier.
create or replace function postgremq.move_floor(i_floor postgremq.floor, i_txid xid8, i_id integer)
returns void
language plpgsql
as $$
declare
    v_due  bigint;
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        return;
    end if;
    v_due := coalesce(postgremq.move_barrier(), i_floor.due_at);
    if (i_txid, i_id) <= (i_floor.new_txid, i_floor.new_id) then
        i_txid := i_floor.new_txid;
        i_id := i_floor.new_id;
    end if;
    insert into postgremq.floor (
        new_txid, new_id, due_at, origin_id, queue_id, part, late,
        open_txids, open_ids, due_times, due_ids)
    with open as materialized (
        select distinct o.txid, o.message_id, o.due_at
        from postgremq.rows_below(i_floor, i_txid, i_id, v_due) o
    ), new as (
        select count(*) as n, array_agg(o.txid order by o.txid, o.message_id) as txids,
               array_agg(o.message_id order by o.txid, o.message_id) as ids
        from open o where o.due_at is null
    ), due as (
        select count(*) as n, array_agg(o.due_at order by o.due_at, o.message_id) as times,
               array_agg(o.message_id order by o.due_at, o.message_id) as ids
        from open o where o.due_at is not null
    )
    select case when new.n > 500 then new.txids[1] else i_txid end,
           case when new.n > 500 then new.ids[1] - 1 else i_id end,
           case when due.n > 500 then due.times[1] - 1 else v_due end,
           g.origin_id, i_floor.queue_id, postgremq.current_part(),
           array(select x from pg_snapshot_xip(pg_current_snapshot()) x
                 union select pg_current_xact_id() where pg_current_xact_id() <= i_txid),
           case when new.n between 1 and 500 then new.txids else '{}' end,
           case when new.n between 1 and 500 then new.ids else '{}' end,
           case when due.n between 1 and 500 then due.times else '{}' end,
           case when due.n between 1 and 500 then due.ids else '{}' end
    from new, due, pgque.origin g
    where i_txid < pg_snapshot_xmax(pg_current_snapshot());
end;
$$;
