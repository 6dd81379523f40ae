-- Floors: where the search for the next messages begins.
--
-- Rows of finished messages stay until TRUNCATE, which may have to wait for old snapshots. If
-- consumers had to skip them, each call would take longer than the last. So a floor of a queue says
-- which rows need not be read: those up to a position in the order of due_at and id. It was
-- computed with a snapshot, and it is correct because each row at or before the position
-- - was superseded for that snapshot, or is listed in the floor (due_times, due_ids);
-- - or was inserted by a transaction that was in progress then: these are listed as late, and are
--   looked up by their ids;
-- - and no later transaction inserts one, because the barrier, which was ahead of the position before
--   the snapshot was taken, is the least due_at that it may use. A transaction reads the barrier
--   after it has got its id.
-- Rotation inserts a row again with the due_at, id and transaction that it had, so a floor finds it.
-- So a floor never hides a message, however late a publisher or a prepared transaction commits. It
-- need not be the newest to be correct. A rollback undoes it together with the claims that it includes.

-- Microseconds since 1970. All times after the year 290000 have the same number, and 'infinity' is the
-- largest number.
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
-- it calls this. A message without attempts left is never due. An i_max of 0 or less means no limit: then
-- (i_max - 1) & 2147483647 is a number that attempts do not reach. It names i_max only once, because
-- otherwise a call with a subquery is not inlined, and parsing it takes longer than the claim.
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

-- Moves the barrier ahead of the clock, unless another session is moving it now. Returns it. The lock
-- must end at once, not with the caller's transaction, so it is taken in a subtransaction that is rolled
-- back; setval is not rolled back.
-- locks: the row of barrier_lock, for microseconds and without waiting. writes: barrier.
create or replace function postgremq.move_barrier()
returns bigint
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    begin
        perform from postgremq.barrier_lock b for update nowait;
        perform setval('postgremq.barrier', greatest(pg_sequence_last_value('postgremq.barrier'),
                                                     postgremq.micros(clock_timestamp()) + 1));
        raise exception using errcode = 'triggered_action_exception';
    exception
        when triggered_action_exception or lock_not_available then
            null;
    end;
    return pg_sequence_last_value('postgremq.barrier');
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
    v_floor.due_at := -1;
    v_floor.due_id := 0;
    v_floor.late := '{}';
    v_floor.due_times := '{}';
    v_floor.due_ids := '{}';
    return v_floor;
end;
$$;

-- The transactions that a floor lists as late and that have ended since. The rows of others are not
-- visible, and a search would have to skip all of them.
create or replace function postgremq.ended_since(i_floor postgremq.floor)
returns setof xid8
language sql stable
as $$
    select late.txid from pg_catalog.unnest(i_floor.late) late(txid)
    where pg_catalog.pg_visible_in_snapshot(late.txid, pg_catalog.pg_current_snapshot())
$$;

-- The open rows in front of a floor: those of the transactions that it lists as late, at most 501 of each,
-- and those that it lists itself.
create or replace function postgremq.listed_rows(i_floor postgremq.floor)
returns setof postgremq.state
language plpgsql
as $$
begin
    return query
    select s.* from postgremq.ended_since(i_floor) late(txid)
    cross join lateral (
        select s.* from postgremq.open_state s
        where s.queue_id = i_floor.queue_id and s.due_at is not null and s.txid = late.txid
          and (s.due_at, s.message_id) <= (i_floor.due_at, i_floor.due_id)
        order by s.due_at + 0, s.message_id  -- not in the order of the index over all transactions
        limit 501) s;
    return query
    select s.* from unnest(i_floor.due_times, i_floor.due_ids) o(due_at, id)
    cross join lateral (
        select s.* from postgremq.open_state s
        where s.queue_id = i_floor.queue_id and s.due_at is not null and s.due_at = o.due_at
          and s.message_id = o.id
        limit 1) s;
end;
$$;

-- Writes a new floor after i_floor, with a position at the row that is due at i_due and has the id i_id, or
-- at the position of i_floor if this is further. If more than 500 rows in front of the position are open, the
-- position is put in front of them instead. Does nothing in a transaction stricter than READ COMMITTED, whose
-- snapshot is older than the barrier.
-- locks: those of move_barrier. writes: floor, barrier.
create or replace function postgremq.move_floor(i_floor postgremq.floor, i_due bigint, i_id integer)
returns void
language plpgsql
as $$
declare
    v_barrier  bigint := pg_sequence_last_value('postgremq.barrier');
begin
    if current_setting('transaction_isolation') not like 'read%' then
        return;
    end if;
    if (i_due, i_id) <= (i_floor.due_at, i_floor.due_id) then
        i_due := i_floor.due_at;
        i_id := i_floor.due_id;
    elsif i_due >= v_barrier then
        v_barrier := postgremq.move_barrier();
        if i_due >= v_barrier then
            i_due := v_barrier - 1;
            i_id := 2147483647;
        end if;
    end if;
    insert into postgremq.floor (
        due_at, due_id, origin_id, queue_id, part, late, due_times, due_ids)
    with open as materialized (
        (select s.due_at, s.message_id from postgremq.open_state s
         where s.queue_id = i_floor.queue_id and s.due_at is not null
           and (s.due_at, s.message_id) > (i_floor.due_at, i_floor.due_id)
           and (s.due_at, s.message_id) <= (i_due, i_id)
         order by s.due_at, s.message_id
         limit 501)
        union
        select r.due_at, r.message_id from postgremq.listed_rows(i_floor) r
    ), found as (
        select count(*) > 500 as is_long, array_agg(o.due_at order by o.due_at, o.message_id) as times,
               array_agg(o.message_id order by o.due_at, o.message_id) as ids
        from open o
    )
    select case when f.is_long then f.times[1] else i_due end,
           case when f.is_long then f.ids[1] - 1 else i_id end,
           g.origin_id, i_floor.queue_id, postgremq.current_part(),
           array(select pg_snapshot_xip(pg_current_snapshot())),
           case when f.is_long then '{}' else coalesce(f.times, '{}') end,
           case when f.is_long then '{}' else coalesce(f.ids, '{}') end
    from found f, pgque.origin g;
end;
$$;

-- For version 0.3, in which a new message that was visible at once had no due_at: gives unclaimed messages
-- a due_at, by a further step. A publisher that waits for this lock then violates the constraint and
-- fails, and loses no message. Superseded rows do not satisfy the constraint.
do $$
begin
    if to_regclass('postgremq.state_new') is not null then
        lock table postgremq.state in share row exclusive mode;
        insert into postgremq.state (
            due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select postgremq.due(s.vt, s.attempts, q.max_delivery_attempts), s.published_at, s.vt, s.queue_id,
               s.message_id, s.step + 1, s.attempts, s.part, s.status
        from postgremq.open_state s
        join postgremq.queue_base q on q.queue_id = s.queue_id
        where s.due_at is null;
        alter table postgremq.state add constraint state_is_due
            check (due_at is not null or status not in ('pending', 'processing')) not valid;
        drop index postgremq.state_new;
    end if;
end;
$$;
