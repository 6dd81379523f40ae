-- Publishes one event. Text is stored unchanged; jsonb, if the caller casts, is validated and
-- stored in PostgreSQL's form. An untyped literal is text. Like insert_event, it calls no wrapper.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send(queue_name text, type_name text, payload text)
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

-- Publishes one event with a partition key, which is stored in ev_extra1. A partitioned consumer
-- assigns events to slots by the key, and events of one key keep their order. Null means no key.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send(
    i_queue text, i_type text, i_payload text, i_partition_key text)
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
    execute v_sql into v_id
    using $2, $3, $4, null::pg_catalog.text, null::pg_catalog.text, null::pg_catalog.text;
    return v_id;
end;
$$;

-- The jsonb form with a partition key.
-- locks: those of the text form. writes: the same.
create or replace function pgque.send(
    i_queue text, i_type text, i_payload jsonb, i_partition_key text)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send(i_queue, i_type, i_payload::text, i_partition_key);
end;
$$;

-- Publishes one event of type "default".
-- locks: those of the three-argument send. writes: the same.
create or replace function pgque.send(queue_name text, payload text)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, 'default', payload);
end;
$$;

-- The jsonb form.
-- locks: those of the text form. writes: the same.
create or replace function pgque.send(queue_name text, type_name text, payload jsonb)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, type_name, payload::text);
end;
$$;

-- The jsonb form with type "default".
-- locks: those of the text form. writes: the same.
create or replace function pgque.send(queue_name text, payload jsonb)
returns bigint
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, 'default', payload::text);
end;
$$;

-- Publishes many events of one type in one statement, all or none. Returns their ids in the order
-- of the payloads. A null payload makes an event without a payload.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads text[])
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque.find_queue(queue_name);
begin
    if payloads is null then
        raise exception using
            errcode = 'PQ005',
            message = 'the array of payloads is null',
            hint = 'Pass an array; an empty one sends nothing.';
    end if;
    return pgque.dispatch_insert_bulk(v_queue.queue_id, type_name, payloads);
end;
$$;

-- Publishes many events of type "default".
-- locks: those of the three-argument send_batch. writes: the same.
create or replace function pgque.send_batch(queue_name text, payloads text[])
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads);
end;
$$;

-- For untyped literals: PostgreSQL cannot choose between text[] and jsonb[], but prefers text to
-- both. So '{a,b}' without a cast is read as an array of text.
-- locks: those of the text[] form. writes: the same.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads text)
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, type_name, payloads::text[]);
end;
$$;

-- The same with type "default".
-- locks: those of the text[] form. writes: the same.
create or replace function pgque.send_batch(queue_name text, payloads text)
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads::text[]);
end;
$$;

-- The jsonb form.
-- locks: those of the text form. writes: the same.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads jsonb[])
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, type_name, payloads::text[]);
end;
$$;

-- The jsonb form with type "default".
-- locks: those of the text form. writes: the same.
create or replace function pgque.send_batch(queue_name text, payloads jsonb[])
returns bigint[]
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.send_batch(queue_name, 'default', payloads::text[]);
end;
$$;
