-- Publishing runs for every event, so insert_event and send are flat: each is one static statement,
-- calls no wrapper, has no SET clause, and qualifies every name and operator. The statement finds
-- the queue, draws the id, and inserts into the queue's current event table. It names every column
-- in the table's order, including those with defaults, because that saves a plan node. If it finds no
-- open queue, insert_event_raw raises the error; or it publishes the event if
-- session_replication_role is replica, so that replication continues into a closed queue, as in
-- PgQ.

-- Publishes one event with all its fields; returns its id.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer as $$
declare
    v_id pg_catalog.int8;
begin
    insert into pgque.event as e (
        ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_table)
    select pg_catalog.nextval(q.queue_seq), pg_catalog.now(), pg_catalog.pg_current_xact_id(),
           null::pg_catalog.int4, null::pg_catalog.int4, $2, $3, $4, $5, $6, $7,
           q.queue_id operator(pg_catalog.*) 4 operator(pg_catalog.+) q.queue_cur_table
    from pgque.queue q
    where q.queue_name operator(pg_catalog.=) $1
      and not q.queue_disable_insert
    returning e.ev_id into v_id;
    if not found then
        return pgque.insert_event_raw($1, null, null, null, null, $2, $3, $4, $5, $6, $7);
    end if;
    return v_id;
end;
$$;

-- PgQ's short form, without the extra fields.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.send($1, $2, $3);
end;
$$;

-- Publishes an event with a given id, time, owner and retry count. Retries and replays use it; it
-- is not for applications. A queue closed by disable_insert refuses it, unless session_replication_role is replica.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event_raw(
    queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer,
    ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue($1);
    v_id    bigint;
begin
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;
    insert into pgque.event as e (
        ev_table, ev_id, ev_time, ev_owner, ev_retry,
        ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    values (
        v_queue.queue_id * 4 + v_queue.queue_cur_table, coalesce($2, nextval(v_queue.queue_seq)),
        coalesce($3, now()), $4, $5, $6, $7, $8, $9, $10, $11)
    returning e.ev_id into v_id;
    return v_id;
end;
$$;

-- Raises the error for a queue that accepts no event: it does not exist, or it is closed to producers
-- and session_replication_role is not replica.
create or replace function pgque.refuse_insert(i_queue text)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.find_queue(i_queue);
    if current_setting('session_replication_role') <> 'replica' then
        raise exception 'queue "%" takes no events now: disable_insert is set', i_queue
            using errcode = 'PQ006',
                  hint = format('Open it with: select pgque.set_queue_config(%L, '
                                '''disable_insert'', ''false'');', i_queue);
    end if;
end;
$$;

-- The table to COPY into. The writer sets the columns ev_type, ev_data and ev_extra1 to ev_extra4.
-- Call this before each load: the answer is valid until the rotation after the next one. Readers
-- find events in every child table, but the child that rotation empties next is closed to writers.
create or replace function pgque.current_event_table(x_queue_name text)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(x_queue_name);
begin
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;
    return format('%s_%s', v_queue.queue_data_pfx, v_queue.queue_cur_table);
end;
$$;
