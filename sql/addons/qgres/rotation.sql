-- Rotation. Entries and positions are only inserted; space comes back when a half of a queue is
-- truncated. The steps, each in its own transaction:
-- 1. switch: new entries go to the other half, which is empty.
-- 2. move: when everything in the half that was left is read, the positions go to the new half too.
-- 3. empty: when no session holds a snapshot from before the move, in which the entries could still
--    be unread (a dump takes its snapshot first and its locks later), the half is truncated.

-- The number up to which all consumers of an SP queue have read, or the last one had read when it was
-- dropped.
create or replace function qgres._floor(i_queue qgres._queue)
returns bigint
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    return coalesce((select min(qgres._position(c))
                     from qgres._consumer c
                     where c.queue_id = i_queue.queue_id), i_queue.floor_number);
end;
$$;

-- Whether a half of an SR queue holds an entry that a snapshot does not see. If the snapshot is the
-- earlier one of the position, that entry may not be removed yet.
create or replace function qgres._has_unseen(
    i_queue qgres._queue, i_half integer, i_snapshot pg_snapshot)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    execute format('select exists (select from %s where entry_txid >= $1 '  -- quoted: made of numbers
                   'and not pg_visible_in_snapshot(entry_txid, $2))',
                   qgres._table('sr_entry', i_queue.queue_id, i_half))
    into v_found using pg_snapshot_xmin(i_snapshot), i_snapshot;
    return v_found;
end;
$$;

-- Whether the current half of a queue holds an entry that all consumers have read, or that was removed.
create or replace function qgres._has_read(i_queue qgres._queue)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_first xid8;
begin
    if i_queue.queue_type = 'Serial Publisher' then
        return qgres._floor(i_queue) >= i_queue.first_number;
    end if;
    execute format('select min(entry_txid) from %s',  -- quoted: made of numbers
                   qgres._table('sr_entry', i_queue.queue_id, i_queue.half))
    into v_first;
    return pg_visible_in_snapshot(v_first, (qgres._removed(i_queue.queue_id)).after_snapshot);
end;
$$;

-- Step 1. Returns 1.
-- locks: held by the caller. writes: _queue.
create or replace function qgres._switch_half(i_queue qgres._queue)
returns integer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    update qgres._queue q
    set half = 1 - q.half, is_left = true,
        first_number = case q.queue_type when 'Serial Publisher'
                       then qgres._last_number(i_queue) + 1 else q.first_number end,
        switched_at = clock_timestamp()
    where q.queue_id = i_queue.queue_id;
    return 1;
end;
$$;

-- Moves the position of a consumer to another half, which begins with i_first, if it has read
-- everything before that. Returns the consumer.
-- locks: the consumer's row, by the caller. writes: _consumer.
create or replace function qgres._move_consumer(
    i_consumer qgres._consumer, i_half smallint, i_first bigint)
returns qgres._consumer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_number bigint := qgres._position(i_consumer);
begin
    if v_number >= i_first - 1 then
        update qgres._consumer c
        set half = i_half, base_number = v_number
        where c.consumer_id = i_consumer.consumer_id
        returning c.* into i_consumer;
    end if;
    return i_consumer;
end;
$$;

-- Step 2 for an SP queue: moves the positions of consumers that have read the half that was left.
-- Skips a consumer that is consuming; it moves itself at its next call, or is moved by the next one of
-- this. Returns whether all are moved.
-- locks: the consumers' rows, those that are free. writes: _consumer.
create or replace function qgres._move_consumers(i_queue qgres._queue)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_consumer  qgres._consumer;
begin
    if qgres._floor(i_queue) < i_queue.first_number - 1 then
        return false;
    end if;
    for v_consumer in
        select c.* from qgres._consumer c
        where c.queue_id = i_queue.queue_id and c.half <> i_queue.half
        for no key update skip locked
    loop
        perform qgres._move_consumer(v_consumer, i_queue.half, i_queue.first_number);
    end loop;
    return not exists (select from qgres._consumer c
                       where c.queue_id = i_queue.queue_id and c.half <> i_queue.half);
end;
$$;

-- Step 2. Returns whether everything in the half that was left is read, and all positions are moved.
-- locks: held by the caller; those of _move_consumers. writes: _queue, _consumer, the log of an SR
-- queue.
create or replace function qgres._move_positions(i_queue qgres._queue)
returns integer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_position qgres._sr_position;
begin
    if i_queue.queue_type = 'Serial Publisher' then
        if not qgres._move_consumers(i_queue) then
            return 0;
        end if;
    else
        v_position := qgres._removed(i_queue.queue_id);
        if qgres._has_unseen(i_queue, 1 - i_queue.half, v_position.after_snapshot) then
            return 0;
        end if;
        if i_queue.position_half <> i_queue.half then
            perform qgres._write_position(i_queue.queue_id, i_queue.half, v_position);
        end if;
    end if;
    update qgres._queue q
    set position_half = q.half, moved_by = pg_current_xact_id(),
        noted_snapshot = v_position.after_snapshot
    where q.queue_id = i_queue.queue_id;
    return 1;
end;
$$;

-- Step 3: truncates the half that was left when all snapshots see step 2. A session that looked an SR
-- queue up before step 1 may have added to this half since; then step 2 is due again.
-- locks: held by the caller; the tables of the half, exclusively. writes: _queue, pgque.snapshot_wait;
-- truncates them.
create or replace function qgres._empty_half(i_queue qgres._queue)
returns integer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_tables   text[] := array(select t from qgres._tables(i_queue, 1 - i_queue.half) t);
    v_is_done  boolean := true;
    v_table    text;
begin
    if not pgque.is_seen_by_all(format('qgres %s', i_queue.queue_id), i_queue.moved_by::text) then
        return 0;
    end if;
    foreach v_table in array v_tables loop
        execute format('lock table %s in access exclusive mode', v_table);  -- quoted: a number's
    end loop;
    if i_queue.queue_type = 'Serial Remover'
       and qgres._has_unseen(i_queue, 1 - i_queue.half, i_queue.noted_snapshot) then
        v_is_done := false;
    else
        execute format('truncate %s', array_to_string(v_tables, ', '));  -- quoted: made of numbers
    end if;
    update qgres._queue q
    set is_left = not v_is_done, moved_by = null, noted_snapshot = null
    where q.queue_id = i_queue.queue_id;
    return 1;
end;
$$;

-- Takes the next step of a queue's rotation, if it is due. Returns whether it did. If i_is_patient, it
-- waits up to two seconds for its turn among publishers and removers, whom this does not delay. Then
-- it waits for a moment for other locks, while they wait behind it.
-- locks: the queue's row, until the transaction ends; those of the step. writes: as the step does.
create or replace function qgres._rotate(i_queue_id integer, i_is_patient boolean)
returns integer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    v_queue qgres._queue;
begin
    perform pgque.commit_locally();
    select q.* into v_queue
    from qgres._queue q where q.queue_id = i_queue_id for no key update skip locked;
    if not found and i_is_patient then
        select q.* into v_queue from qgres._queue q where q.queue_id = i_queue_id for no key update;
    end if;
    perform set_config('lock_timeout', '100ms', true);
    if v_queue.queue_id is null then
        return 0;
    elsif not v_queue.is_left then
        return case when qgres._has_read(v_queue) then qgres._switch_half(v_queue) else 0 end;
    elsif v_queue.moved_by is null then
        return qgres._move_positions(v_queue);
    end if;
    return qgres._empty_half(v_queue);
exception
    when lock_not_available then
        return 0;
end;
$$;

-- The queues whose rotation may have a step to do: those with a half that was left, and those that
-- were not switched for metadata_rotation_period and have entries.
create or replace function qgres._rotation_due()
returns setof integer
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres._queue;
begin
    for v_queue in
        select q.* from qgres._queue q
        join pgque.origin o on o.origin_id = q.origin_id or q.queue_type = 'Serial Publisher'
        cross join pgque.config c
        where q.is_left or q.switched_at <= clock_timestamp() - c.metadata_rotation_period
    loop
        if v_queue.is_left or exists (
            select from qgres._tables(v_queue, v_queue.half) t where pg_relation_size(t) > 0)
           and qgres._has_read(v_queue) then
            return next v_queue.queue_id;
        end if;
    end loop;
end;
$$;

-- Maintenance of the add-on: takes the steps of rotation that are due. At most ten queues per call
-- have a step done, so that their publishers do not wait for long. For the same reason it waits only
-- for the first one, while it holds no lock, and a random one is first, so that each gets its turn.
-- Otherwise, a publisher to two queues could deadlock with it. Returns how many.
-- locks: those of _rotate. writes: the same.
create or replace function qgres.maint()
returns integer
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue_id  integer;
    v_is_first  boolean := true;
    v_done      integer := 0;
begin
    perform pgque.check_read_committed('maintenance');
    for v_queue_id in select due from qgres._rotation_due() due order by random() loop
        v_done := v_done + qgres._rotate(v_queue_id, v_is_first);
        v_is_first := false;
        exit when v_done >= 10;
    end loop;
    return v_done;
end;
$$;
