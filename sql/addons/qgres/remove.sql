-- Removal from SR queues. The removed entries are recorded as a pair of snapshots and a place between them,
-- like ticks and batches of pgque, so nothing is deleted. Removers of a queue wait for each other's lock on
-- its row.

-- The newest row of an SR queue's log of positions.
create or replace function qgres._removed(i_queue_id integer)
returns qgres._sr_position
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_position qgres._sr_position;
begin
    execute format('select * from qgres.sr_removed_%s()', i_queue_id) into v_position;  -- quoted: a number
    return v_position;
end;
$$;

-- Writes the next position of an SR queue.
-- locks: none. writes: the queue's log of positions.
create or replace function qgres._write_position(
    i_queue_id integer, i_half integer, i_position qgres._sr_position)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format('select qgres.sr_move_%s($1, $2)', i_queue_id)  -- quoted: a number
    using i_half::smallint, i_position;
end;
$$;

-- Locks an SR queue for a remover, which waits for the previous one. After a restore into another
-- cluster it adopts the queue first.
-- locks: the queue's row, until the transaction ends. writes: nothing, or what _adopt writes.
create or replace function qgres._lock_for_remover(i_queue_id integer)
returns qgres._queue
language plpgsql set search_path = qgres, pg_catalog, pg_temp
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

-- Removes and returns entries of an SR queue. A second remover waits for the first.
-- sr_remove_0 says in which order.
-- locks: the queue's row, until the transaction ends. writes: the queue's log of positions.
create or replace function qgres."Remove"(queue_id integer, row_limit integer default 2147483647)
returns table (bytea bytea, jsonb jsonb, text text)
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres._queue := qgres._lock_for_remover(queue_id);
begin
    if row_limit < 0 then
        perform qgres._check_limit(row_limit);
    end if;
    return query execute format(
        'select * from qgres.sr_remove_%s($1, $2)', v_queue.queue_id)  -- quoted: a number
    using v_queue.position_half, coalesce(row_limit, 9223372036854775807);
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

-- Whether an SR queue holds an entry that sr_page returns for a position.
create or replace function qgres._has_page(i_queue_id integer, i_position qgres._sr_position)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    execute format('select exists (select from qgres.sr_page_%s($1, 1))', i_queue_id)  -- quoted: a number
    into v_found using i_position;
    return v_found;
end;
$$;

-- Whether an SR queue holds an entry that "Remove" would return.
create or replace function qgres._has_unremoved(i_queue qgres._queue)
returns boolean
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_position qgres._sr_position%rowtype;
begin
    v_position := qgres._removed(i_queue.queue_id);
    if v_position.until_snapshot is not null then
        if qgres._has_page(i_queue.queue_id, v_position) then
            return true;
        end if;
        v_position.after_snapshot := v_position.until_snapshot;
        v_position.last_txid := null;
        v_position.last_id := null;
    end if;
    v_position.until_snapshot := pgque.tick_snapshot();
    if qgres._has_page(i_queue.queue_id, v_position) then
        return true;
    end if;
    v_position.until_snapshot := null;
    return qgres._has_page(i_queue.queue_id, v_position);
end;
$$;

-- Adopts an SR queue that was restored into another cluster, whose transaction ids do not compare
-- with those in the dump. The first transaction that adds or removes does this, so all rows are still
-- of the old cluster. They become entries of this transaction; those that were removed are deleted.
-- locks: the queue's row, until the transaction ends. writes: the queue's entries and log, _queue.
create or replace function qgres._adopt(i_queue_id integer)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
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
    set origin_id = v_origin, moved_by = null, noted_snapshot = null
    where q.queue_id = i_queue_id;
end;
$$;
