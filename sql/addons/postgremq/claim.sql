-- Keeps the limit of attempts of a queue, for a transaction that may have an older snapshot: it would
-- put a message out of reach, or deliver it too often. Fails if the limit has changed since.
-- locks: the queue's row, in transactions stricter than READ COMMITTED only. writes: nothing.
create or replace function postgremq.keep_limit(i_queue varchar)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform from postgremq.queue_base b where b.name = i_queue for share;
    end if;
end;
$$;

-- Refuses invalid numbers of a claim, and keeps the limit of attempts.
-- locks: those of keep_limit. writes: nothing.
create or replace function postgremq.check_claim(i_queue varchar, i_vt integer, i_limit integer)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    if i_vt is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'p_vt is null',
            hint = 'Pass for how many seconds the messages stay invisible to others.';
    elsif i_limit < 0 then
        raise exception using
            errcode = 'invalid_row_count_in_limit_clause',
            message = format('p_limit is %s', i_limit),
            hint = 'Pass how many messages to claim at most.';
    end if;
    perform postgremq.keep_limit(i_queue);
end;
$$;

-- Locks and returns rows of a queue that are visible, at most i_limit, and skips those that others have
-- locked: first those in front of the floor, then those behind it, in the order of due_at. i_now is the
-- time in microseconds.
-- locks: the rows that it returns. writes: nothing.
create or replace function postgremq.pick_rows(i_floor postgremq.floor, i_now bigint, i_limit bigint)
returns setof postgremq.state
language plpgsql
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_rows  bigint;
begin
    if cardinality(i_floor.late) > 0 then
        return query
        select s.*
        from postgremq.ended_since(i_floor) late(txid)
        join postgremq.open_state s on s.queue_id = i_floor.queue_id and s.txid = late.txid
        where s.due_at is not null and s.vt <= v_now
          -- Written so that it is not a condition for the index over all transactions.
          and (s.due_at + 0, s.message_id) <= (i_floor.due_at, i_floor.due_id)
        limit i_limit
        for update of s skip locked;
        get diagnostics v_rows = row_count;
        i_limit := i_limit - v_rows;
    end if;
    if cardinality(i_floor.due_ids) > 0 then
        return query
        select s.*
        from unnest(i_floor.due_times, i_floor.due_ids) o(due_at, id)
        join postgremq.open_state s
          on s.queue_id = i_floor.queue_id and s.due_at = o.due_at and s.message_id = o.id
        where s.due_at is not null and s.vt <= v_now
        limit i_limit
        for update of s skip locked;
        get diagnostics v_rows = row_count;
        i_limit := i_limit - v_rows;
    end if;
    if i_limit > 0 then
        return query
        select s.* from postgremq.open_state s
        where s.queue_id = i_floor.queue_id and s.due_at is not null
          and (s.due_at, s.message_id) > (i_floor.due_at, i_floor.due_id)
          and s.due_at <= i_now and s.vt <= v_now
        order by s.due_at, s.message_id
        limit i_limit
        for update skip locked;
    end if;
end;
$$;

-- For a consumer that found nothing: writes a floor behind all rows of the queue if the consumer has
-- skipped more than 64 of them, so that the next one does not. An empty queue is only read.
-- locks: those of move_floor. writes: the same.
create or replace function postgremq.catch_up(i_floor postgremq.floor, i_now bigint)
returns void
language plpgsql
as $$
begin
    if exists (
            select from postgremq.state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null
              and (s.due_at, s.message_id) > (i_floor.due_at, i_floor.due_id) and s.due_at <= i_now
            offset 64) then
        perform postgremq.move_floor(i_floor, i_now, 2147483647);
    end if;
end;
$$;
