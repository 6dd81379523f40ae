-- Rotation: maintenance makes the other part the current one when the period is over and that part
-- is empty, then empties the one that it left: it copies completed messages to finished, moves the
-- unfinished messages to the current part, and truncates the part when no snapshot needs it any more.
--
-- Until then, which may take hours, the part is done, and TRUNCATE need not read it again under its
-- lock. That loses no message:
-- - a part is declared done under a lock that excludes all transactions that wrote to it, after it was
--   checked with a later snapshot. Then it has no open message, so no consumer writes to it either;
-- - a session that puts an open message there nevertheless takes a number of the sequence "late", after
--   which the part is no longer done for any session. This is a publisher that read the current part
--   before it changed, or a session that puts back a finished message. The number is taken after the
--   insert, which has to wait for the lock.

-- Copies messages that were completed in a part to finished. Returns how many, at most i_limit; none
-- if another session is removing messages. Sessions that want to remove some wait until the transaction ends.
-- locks: finished, without waiting. writes: finished.
create or replace function postgremq.archive_part(i_part smallint, i_limit integer)
returns integer
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_rows integer;
begin
    begin
        lock table postgremq.finished in share row exclusive mode nowait;
    exception
        when lock_not_available then
            return 0;
    end;
    insert into postgremq.finished (
        queue_id, message_id, published_at, vt, attempts, processed_at)
    select s.queue_id, s.message_id, s.published_at, s.vt, s.attempts, s.processed_at
    from postgremq.last_state s
    join postgremq.queue_base q on q.queue_id = s.queue_id
    where s.part = i_part and s.status = 'completed'
      and not exists (select from postgremq.finished f
                      where f.queue_id = s.queue_id and f.message_id = s.message_id)
    limit i_limit
    on conflict do nothing;
    get diagnostics v_rows = row_count;
    return v_rows;
end;
$$;

-- Moves unfinished messages of a part to the current part, with their tokens, and skips those that
-- another session has claimed. They keep txid, due_at and id, with which floors find them. Returns how
-- many, at most i_limit. Fails if a consumer keeps the transaction of an answer open.
-- locks: the rows that it moves, for at most the lock_timeout. writes: state.
create or replace function postgremq.move_states(i_part smallint, i_limit integer)
returns integer
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
set lock_timeout = '500ms'
as $$
declare
    v_rows integer;
begin
    with picked as materialized (
        select s.*
        from postgremq.last_state s
        join postgremq.queue_base q on q.queue_id = s.queue_id
        where s.part = i_part and s.status in ('pending', 'processing')
        limit i_limit
        for update of s skip locked
    ), ended as (
        insert into postgremq.state as e (vt, queue_id, message_id, step, attempts, part, status)
        select p.vt, p.queue_id, p.message_id, p.step + 1, p.attempts, i_part, 'moved'
        from picked p
        on conflict do nothing
        returning e.queue_id, e.message_id
    )
    insert into postgremq.state (
        txid, due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
    select p.txid, p.due_at, p.published_at, p.vt, p.queue_id, p.message_id, p.step + 1, p.attempts,
           postgremq.current_part(), p.status, p.token
    from picked p
    join ended e on e.queue_id = p.queue_id and e.message_id = p.message_id;
    get diagnostics v_rows = row_count;
    return v_rows;
end;
$$;

-- Whether a part has messages that are not finished, or whose completion is not in finished yet.
-- Messages of queues that were deleted do not count.
create or replace function postgremq.is_part_needed(i_part smallint)
returns boolean
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return exists (
        select
        from postgremq.last_state s
        join postgremq.queue_base q on q.queue_id = s.queue_id
        where s.part = i_part
          and (s.status <> 'completed'
               or not exists (select from postgremq.finished f
                              where f.queue_id = s.queue_id and f.message_id = s.message_id)));
end;
$$;

-- Whether a part is done.
create or replace function postgremq.is_part_done(i_part smallint)
returns boolean
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return exists (
        select from postgremq.rotation_part p
        where p.part = i_part and p.turn = pg_sequence_last_value('postgremq.turn')
          and p.late = pg_sequence_last_value('postgremq.late'));
end;
$$;

-- Notes that a part is done, if it is. The next maintenance tries again if the part is in use.
-- Returns whether it did.
-- locks: the part against writers, without waiting. writes: rotation_part.
create or replace function postgremq.finish_part(i_part smallint)
returns boolean
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_late  bigint := pg_sequence_last_value('postgremq.late');
begin
    begin
        execute format('lock table postgremq.state_%s in share mode nowait', i_part);  -- quoted: a number
    exception
        when lock_not_available then
            return false;
    end;
    if postgremq.is_part_needed(i_part) then
        return false;
    end if;
    update postgremq.rotation_part p
    set turn = pg_sequence_last_value('postgremq.turn'), late = v_late,
        done_at = clock_timestamp(), done_by = pg_current_xact_id()
    where p.part = i_part;
    return true;
end;
$$;

-- Truncates a part that is done, when all snapshots see that it is: TRUNCATE empties it for old ones,
-- too. Returns whether it did.
-- locks: the part, exclusively: consumers that still look at it wait behind this for 10 ms, the tenth
-- of a second when the part has been done for a minute, or 0.9 seconds after 10 minutes. writes:
-- pgque.snapshot_wait; truncates the part.
create or replace function postgremq.empty_part(i_part smallint)
returns boolean
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
set lock_timeout = '10ms'
as $$
declare
    v_part postgremq.rotation_part;
begin
    select p.* into v_part from postgremq.rotation_part p where p.part = i_part;
    if not pgque.is_seen_by_all('postgremq', v_part.done_by::text) then
        return false;
    end if;
    perform set_config('lock_timeout',
                       case when v_part.done_at < clock_timestamp() - interval '10 minutes' then '900ms'
                            when v_part.done_at < clock_timestamp() - interval '1 minute' then '100ms'
                            else '10ms' end, true);
    begin
        perform pgque.commit_locally();
        -- The names are made of a number.
        execute format('lock table postgremq.state_%1$s, postgremq.floor_%1$s '  -- quoted: a number
                       'in access exclusive mode', i_part);
        if not postgremq.is_part_done(i_part) then
            raise exception using errcode = 'lock_not_available';
        end if;
        execute format('truncate postgremq.state_%1$s, postgremq.floor_%1$s',  -- quoted: a number
                       i_part);
    exception
        when lock_not_available or object_in_use then
            return false;
    end;
    return true;
end;
$$;

-- Maintenance of the states: makes the next part current when it is time, and empties the other.
-- Call it every few seconds to minutes; pgque.maint() does. Returns how much it did: parts, and
-- messages copied or moved, or 1 for a part that is done or was truncated.
-- locks: the row of rotation; those of finish_part and empty_part. writes: rotation, turn, and what the
-- others write.
create or replace function postgremq.maint()
returns bigint
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_rotation  postgremq.rotation;
    v_current   smallint;
    v_other     smallint;
    v_done      bigint;
begin
    perform pgque.check_read_committed('rotation');
    select r.* into v_rotation from postgremq.rotation r for no key update skip locked;
    if not found then
        return 0;
    end if;
    v_current := postgremq.current_part();
    v_other := 1 - v_current;
    if pg_relation_size(format('postgremq.state_%s', v_other)) = 0 then
        if clock_timestamp() < v_rotation.switched_at + v_rotation.period
           or pg_relation_size(format('postgremq.state_%s', v_current)) < 65536 then
            return 0;
        end if;
        update postgremq.rotation r set switched_at = clock_timestamp();
        perform setval('postgremq.turn', pg_sequence_last_value('postgremq.turn') + 1);
        return 1;
    end if;

    if postgremq.is_part_done(v_other) then
        return postgremq.empty_part(v_other)::integer;
    end if;
    v_done := postgremq.archive_part(v_other, 50000);
    -- A long backlog stays in its part until it is consumed: moving it would cost more than it frees.
    if (select count(*) from (
            select from postgremq.last_state s
            where s.part = v_other and s.status <> 'completed'
            limit 10001) unfinished) <= 10000 then
        begin
            v_done := v_done + postgremq.move_states(v_other, 10000);
        exception
            when lock_not_available then
                null;  -- the part is needed by that consumer anyway
        end;
    end if;
    if v_done = 0 then
        v_done := postgremq.finish_part(v_other)::integer;
    end if;
    return v_done;
end;
$$;
