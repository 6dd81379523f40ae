-- Publishes one event with all its fields; returns its id. insert_event and send look up the queue
-- and call its generated insert function. They run for every event, so each is flat: it calls no
-- other wrapper, has no SET clause, and qualifies every name and operator.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer
as $$
declare
    v_sql  pg_catalog.text;
    v_id   pg_catalog.int8;
begin
    select q.queue_insert_sql into v_sql
    from pgque.queue q where q.queue_name operator(pg_catalog.=) $1;
    if not found then
        perform pgque.find_queue($1);
    end if;
    execute v_sql into v_id using $2, $3, $4, $5, $6, $7;
    return v_id;
end;
$$;

-- PgQ's short form, without the extra fields.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql security definer
as $$
declare
    v_queue_id pg_catalog.int4;
begin
    select q.queue_id into v_queue_id
    from pgque.queue q where q.queue_name operator(pg_catalog.=) $1;
    if not found then
        perform pgque.find_queue($1);
    end if;
    return pgque.dispatch_insert(v_queue_id, $2, $3);
end;
$$;

-- Publishes an event with a given id, time, owner and retry count. Retries and replays use it; it
-- is not for applications. A queue closed by disable_insert refuses it.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.insert_event_raw(
    queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer,
    ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue($1);
    v_id    bigint;
begin
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_id);
    end if;
    execute format(
        'insert into %s as e (ev_id, ev_time, ev_owner, ev_retry, '  -- quoted: made of a number
        'ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
        'values (coalesce($1, nextval(%L)), coalesce($2, now()), $3, $4, $5, $6, $7, $8, $9, $10) '
        'returning e.ev_id',
        format('%s_%s', v_queue.queue_data_pfx, v_queue.queue_cur_table), v_queue.queue_event_seq)
    into v_id using $2, $3, $4, $5, $6, $7, $8, $9, $10, $11;
    return v_id;
end;
$$;

-- The table to COPY into. The writer sets the columns ev_type, ev_data and ev_extra1 to ev_extra4.
-- Call this before each load: the answer is valid until the rotation after the next one. Readers
-- find events in every child table, but the child that rotation empties next is closed to writers.
-- locks: none. writes: nothing.
create or replace function pgque.current_event_table(x_queue_name text)
returns text
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue(x_queue_name);
begin
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_id);
    end if;
    return format('%s_%s', v_queue.queue_data_pfx, v_queue.queue_cur_table);
end;
$$;
