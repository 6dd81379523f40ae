-- Publishes one event. Text is stored unchanged; jsonb, if the caller casts, is validated and stored in
-- PostgreSQL's form. An untyped literal is text.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send(
    queue_name text, type_name text, payload text)
returns bigint
language plpgsql security definer as $$
declare
    v_id pg_catalog.int8;
begin
    insert into pgque.event as e (
        ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_table)
    select pg_catalog.nextval(q.queue_seq), pg_catalog.now(), pg_catalog.pg_current_xact_id(),
           null::pg_catalog.int4, null::pg_catalog.int4, $2, $3,
           null::pg_catalog.text, null::pg_catalog.text,
           null::pg_catalog.text, null::pg_catalog.text,
           q.queue_id operator(pg_catalog.*) 4 operator(pg_catalog.+) q.queue_cur_table
    from pgque.queue q
    where q.queue_name operator(pg_catalog.=) $1
      and not q.queue_disable_insert
    returning e.ev_id into v_id;
    if not found then
        return pgque.insert_event_raw($1, null, null, null, null, $2, $3, null, null, null, null);
    end if;
    return v_id;
end;
$$;

-- Publishes one event with a partition key, which is stored in ev_extra1. A partitioned consumer
-- assigns events to slots by the key, and events of one key keep their order. Null means no key.
create or replace function pgque.send(i_queue text, i_type text, i_payload text, i_partition_key text)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.insert_event($1, $2, $3, $4, null, null, null);
end;
$$;

-- The jsonb form with a partition key.
create or replace function pgque.send(i_queue text, i_type text, i_payload jsonb, i_partition_key text)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.insert_event($1, $2, $3::pg_catalog.text, $4, null, null, null);
end;
$$;

-- Publishes one event of type "default".
create or replace function pgque.send(queue_name text, payload text)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.send($1, 'default', $2);
end;
$$;

-- The jsonb form.
create or replace function pgque.send(queue_name text, type_name text, payload jsonb)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.send($1, $2, $3::pg_catalog.text);
end;
$$;

-- The jsonb form with type "default".
create or replace function pgque.send(queue_name text, payload jsonb)
returns bigint
language plpgsql security definer
as $$
begin
    return pgque.send($1, 'default', $2::pg_catalog.text);
end;
$$;

-- Publishes many events of one type in one statement, all or none. Returns their ids in the order of
-- the payloads. A null payload makes an event without a payload.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads text[])
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(queue_name);
    v_ids    bigint[];
    v_table  integer := v_queue.queue_id * 4 + v_queue.queue_cur_table;
begin
    if payloads is null then
        perform pgque.refuse_value('the array of payloads is null', null,
                                   'Pass an array; an empty one sends nothing.');
    end if;
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;
    -- Drawn first: that is cheaper than returning the ids row by row, and assigns them in order.
    v_ids := array(select nextval(v_queue.queue_seq)
                   from generate_series(1, cardinality(payloads)));
    insert into pgque.event (ev_table, ev_id, ev_type, ev_data)
    select v_table, unnest(v_ids), type_name, unnest(payloads);
    return v_ids;
end;
$$;

-- Publishes many events of type "default".
create or replace function pgque.send_batch(queue_name text, payloads text[])
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads);
end;
$$;

-- For untyped literals: PostgreSQL cannot choose between text[] and jsonb[], but prefers text to both.
-- So '{a,b}' without a cast is read as an array of text.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads text)
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, type_name, payloads::text[]);
end;
$$;

-- The same with type "default".
create or replace function pgque.send_batch(queue_name text, payloads text)
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads::text[]);
end;
$$;

-- The jsonb form.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads jsonb[])
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, type_name, payloads::text[]);
end;
$$;

-- The jsonb form with type "default".
create or replace function pgque.send_batch(queue_name text, payloads jsonb[])
returns bigint[]
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads::text[]);
end;
$$;
