-- Publishes one event. Text is stored unchanged; jsonb, if the caller casts, is validated and stored in
-- PostgreSQL's form. An untyped literal is text.
-- locks: none beyond the insert's own. writes: the queue's current event table.
copy to pgque from pgque: insert_event(text, text, text, text, text, text, text) as send
replace (ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text) with (type_name text, payload text)
replace (int4, $2, $3, $4, $5, $6, $7,) with (int4, $2, $3,
           null::pg_catalog.text, null::pg_catalog.text,
           null::pg_catalog.text, null::pg_catalog.text,)
replace (null, $2, $3, $4, $5, $6, $7) with (null, $2, $3, null, null, null, null)
;

-- Publishes one event with a partition key, which is stored in ev_extra1. A partitioned consumer
-- assigns events to slots by the key, and events of one key keep their order. Null means no key.
forward pgque.send(i_queue text, i_type text, i_payload text, i_partition_key text)
as pgque.insert_event($1, $2, $3, $4, null, null, null);

-- The jsonb form with a partition key.
forward pgque.send(i_queue text, i_type text, i_payload jsonb, i_partition_key text)
as pgque.insert_event($1, $2, $3::pg_catalog.text, $4, null, null, null);

-- Publishes one event of type "default".
forward pgque.send(queue_name text, payload text) returns bigint
as pgque.send($1, 'default', $2);

-- The jsonb form.
forward pgque.send(queue_name text, type_name text, payload jsonb) returns bigint
as pgque.send($1, $2, $3::pg_catalog.text);

-- The jsonb form with type "default".
forward pgque.send(queue_name text, payload jsonb) returns bigint
as pgque.send($1, 'default', $2::pg_catalog.text);

-- Publishes many events of one type in one statement, all or none. Returns their ids in the order of
-- the payloads. A null payload makes an event without a payload.
-- locks: none beyond the insert's own. writes: the queue's current event table.
create or replace function pgque.send_batch(queue_name text, type_name text, payloads text[])
returns bigint[] security definer
as $$
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
forward pgque.send_batch(queue_name text, payloads text[])
as pgque.send_batch(queue_name, 'default', payloads);

-- For untyped literals: PostgreSQL cannot choose between text[] and jsonb[], but prefers text to both.
-- So '{a,b}' without a cast is read as an array of text.
forward pgque.send_batch(queue_name text, type_name text, payloads text)
as pgque.send_batch(queue_name, type_name, payloads::text[]);

-- The same with type "default".
forward pgque.send_batch(queue_name text, payloads text)
as pgque.send_batch(queue_name, 'default', payloads::text[]);

-- The jsonb form.
forward pgque.send_batch(queue_name text, type_name text, payloads jsonb[])
as pgque.send_batch(queue_name, type_name, payloads::text[]);

-- The jsonb form with type "default".
forward pgque.send_batch(queue_name text, payloads jsonb[])
as pgque.send_batch(queue_name, 'default', payloads::text[]);
