-- Removal from SR queues. What was removed is a pair of snapshots and a place between them, as ticks
-- and batches of pgque are, so nothing is deleted. Removers of a queue wait for each other at its row.

-- The newest row of an SR queue's log of positions.
-- locks: none. writes: nothing.
create or replace function qgres._removed(i_queue_id integer)
returns qgres._sr_position
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_position qgres._sr_position;
begin
    execute format('select * from qgres.sr_removed_%s()', i_queue_id) into v_position;  -- quoted: a number
    if v_position.pos_seq is null then
        raise exception using
            errcode = 'serialization_failure',
            message = 'the position of the queue is not in this transaction''s snapshot',
            hint = 'The transaction began before the position was moved: roll back and try again.';
    end if;
    return v_position;
end;
$$;

-- Returns up to i_limit entries that are visible in the later snapshot of a position and not in the
-- earlier one. The search begins at the oldest transaction that the earlier one left open and the
-- later one sees, or behind the earlier one.
-- locks: none. writes: nothing.
create or replace function qgres._page(
    i_queue_id integer, i_position qgres._sr_position, i_limit bigint)
returns setof qgres._sr_entry
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_low xid8 := coalesce(
        i_position.last_txid,
        (select min(x::text::bigint)::text::xid8 from pg_snapshot_xip(i_position.after_snapshot) x
         where pg_visible_in_snapshot(x, i_position.until_snapshot)),
        pg_snapshot_xmax(i_position.after_snapshot));
begin
    return query execute format(
        'select * from qgres.sr_page_%s($1, $2, $3, $4)', i_queue_id)  -- quoted: a number
    using i_position, v_low, coalesce(i_position.last_id, 0), i_limit;
end;
$$;

-- Returns up to i_limit entries that this transaction added and has not removed. They are in no
-- snapshot yet.
-- locks: none. writes: nothing.
create or replace function qgres._own_page(
    i_queue_id integer, i_position qgres._sr_position, i_limit bigint)
returns setof qgres._sr_entry
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_own    xid8 := pg_current_xact_id_if_assigned();
    v_after  bigint := case when i_position.own_txid = v_own then i_position.own_id else 0 end;
begin
    i_position.until_snapshot := null;
    return query execute format(
        'select * from qgres.sr_page_%s($1, $2, $3, $4)', i_queue_id)  -- quoted: a number
    using i_position, v_own, v_after, i_limit;
end;
$$;

-- Writes the next position of an SR queue. In REPEATABLE READ, a position that the snapshot does not
-- see makes this one a serialization failure, because its number is taken.
-- locks: none. writes: the queue's log of positions.
create or replace function qgres._write_position(
    i_queue_id integer, i_half integer, i_position qgres._sr_position)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    i_position.pos_seq := i_position.pos_seq + 1;
    execute format('select qgres.sr_move_%s($1, $2)', i_queue_id)  -- quoted: a number
    using i_half::smallint, i_position;
end;
$$;

-- Locks an SR queue for a remover, who waits for the one before. After a restore into another
-- cluster it adopts the queue first.
-- locks: the queue's row, until the transaction ends. writes: nothing, or what _adopt writes.
create or replace function qgres._lock_for_remover(i_queue_id integer)
returns qgres._queue
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres._queue;
begin
    select q.* into v_queue from qgres._queue q where q.queue_id = i_queue_id for no key update;
    if not found or v_queue.queue_type <> 'Serial Remover' then
        perform qgres._refuse_type(i_queue_id, 'invalid_parameter_value',
            'consume() may only be called on Serial Remover queues',
            'This is "Remove"(). Perhaps you want to use the consume() function instead?');
    end if;
    if v_queue.origin_id <> (select o.origin_id from pgque.origin o) then
        perform qgres._adopt(i_queue_id);
        select q.* into v_queue from qgres._queue q where q.queue_id = i_queue_id;
    end if;
    return v_queue;
end;
$$;

-- Removes and returns entries of an SR queue: first those between the two snapshots of the position,
-- then those since, and last those of this transaction. A second remover waits for the first. A page
-- that is not full has reached the end: the position is then the later snapshot. The entries of a
-- transaction that removed some of its own are in the next range, where own_txid leaves those out;
-- when that range is finished, the next transaction may take the place. A call that finds nothing
-- writes nothing, unless it finishes a range.
-- locks: the queue's row, until the transaction ends. writes: the queue's log of positions.
create or replace function qgres."Remove"(queue_id integer, row_limit integer default 2147483647)
returns table (bytea bytea, jsonb jsonb, text text)
language plpgsql security definer
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue     qgres._queue := qgres._lock_for_remover(queue_id);
    v_left      bigint := coalesce(row_limit, 9223372036854775807);
    v_new       qgres._sr_position%rowtype;
    v_entry     qgres._sr_entry;
    v_is_fresh  boolean := false;
    v_is_moved  boolean := false;
begin
    if row_limit < 0 then
        perform qgres._check_limit(row_limit);
    end if;
    v_new := qgres._removed(v_queue.queue_id);
    while v_left > 0 and not v_is_fresh loop
        v_is_fresh := v_new.until_snapshot is null;
        v_is_moved := v_is_moved or not v_is_fresh;
        v_new.until_snapshot := coalesce(v_new.until_snapshot, pgque.tick_snapshot());
        for v_entry in select p.* from qgres._page(queue_id, v_new, v_left) p loop
            v_left := v_left - 1;
            v_is_moved := true;
            v_new.last_txid := v_entry.entry_txid;
            v_new.last_id := v_entry.entry_id;
            bytea := v_entry.bytea;
            jsonb := v_entry.jsonb;
            text := v_entry.text;
            return next;
        end loop;
        if v_left > 0 then
            v_new.after_snapshot := v_new.until_snapshot;
            v_new.until_snapshot := null;
            v_new.last_txid := null;
            v_new.last_id := null;
        end if;
    end loop;
    if v_left > 0 and v_new.own_txid is distinct from pg_current_xact_id_if_assigned() then
        v_is_moved := v_is_moved or v_new.own_txid is not null;
        v_new.own_txid := null;
        v_new.own_id := null;
    end if;
    if v_left > 0 then
        for v_entry in select p.* from qgres._own_page(queue_id, v_new, v_left) p loop
            v_is_moved := true;
            v_new.own_txid := v_entry.entry_txid;
            v_new.own_id := v_entry.entry_id;
            bytea := v_entry.bytea;
            jsonb := v_entry.jsonb;
            text := v_entry.text;
            return next;
        end loop;
    end if;
    if v_is_moved then
        perform qgres._write_position(queue_id, v_queue.position_half, v_new);
    end if;
end;
$$;

-- The form that takes the queue's name.
-- locks: those of the other form. writes: the same.
create or replace function qgres."Remove"(queue_name text, row_limit integer default 2147483647)
returns table (bytea bytea, jsonb jsonb, text text)
language sql
set search_path = qgres, pg_catalog, pg_temp
as $$
    select r.* from qgres."Remove"(qgres.queue__get_id($1), $2) r;
$$;

-- Whether an SR queue holds an entry that "Remove" would return.
-- locks: none. writes: nothing.
create or replace function qgres._has_unremoved(i_queue qgres._queue)
returns boolean
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_position qgres._sr_position%rowtype;
begin
    v_position := qgres._removed(i_queue.queue_id);
    if v_position.until_snapshot is not null then
        if exists (select from qgres._page(i_queue.queue_id, v_position, 1)) then
            return true;
        end if;
        v_position.after_snapshot := v_position.until_snapshot;
        v_position.last_txid := null;
        v_position.last_id := null;
    end if;
    v_position.until_snapshot := pgque.tick_snapshot();
    return exists (select from qgres._page(i_queue.queue_id, v_position, 1))
        or exists (select from qgres._own_page(i_queue.queue_id, v_position, 1));
end;
$$;

-- Adopts an SR queue that was restored into another cluster, whose transaction ids do not compare
-- with those in the dump. The first transaction that adds or removes does this, so all rows are still
-- of the old cluster. They become entries of this transaction; those that were removed are deleted.
-- locks: the queue's row, until the transaction ends. writes: the queue's entries and log, _queue.
create or replace function qgres._adopt(i_queue_id integer)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue     qgres._queue;
    v_position  qgres._sr_position;
    v_origin    uuid := (select o.origin_id from pgque.origin o);
begin
    select q.* into v_queue from qgres._queue q where q.queue_id = i_queue_id for no key update;
    if v_queue.origin_id = v_origin then
        return;
    end if;
    v_position := qgres._removed(v_queue.queue_id);
    for v_half in 0 .. 1 loop
        execute format(  -- quoted: made of the queue's number
            'delete from %s e where pg_visible_in_snapshot(e.entry_txid, $1) '
            'or pg_visible_in_snapshot(e.entry_txid, $2) and (e.entry_txid, e.entry_id) <= ($3, $4) '
            'or e.entry_txid = $5 and e.entry_id <= $6',
            qgres._table('sr_entry', i_queue_id, v_half))
        using v_position.after_snapshot, v_position.until_snapshot, v_position.last_txid,
              v_position.last_id, v_position.own_txid, v_position.own_id;
        execute format('update %s set entry_txid = pg_current_xact_id()',  -- quoted: made of numbers
                       qgres._table('sr_entry', i_queue_id, v_half));
    end loop;
    perform qgres._write_position(i_queue_id, v_queue.position_half, row(
        v_position.pos_seq, pgque.tick_snapshot(), null, null, null, null, null)::qgres._sr_position);
    update qgres._queue q
    set origin_id = v_origin, moved_by = null, moved_at = null, noted_snapshot = null, holders = null
    where q.queue_id = i_queue_id;
end;
$$;
