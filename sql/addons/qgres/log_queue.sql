-- A queue of pgque that gets each entry of an SP queue as an event, in the transaction that publishes
-- it. So Spark, Dagster and streams read it with the engine's guarantees. Publishers of the queue
-- wait for each other, so the events of a batch are a range of numbers, in order.

-- Sends an entry to the queue that logs it. ev_data is the text or, without a text, the jsonb as
-- text; ev_extra1 the sequence number; ev_extra2 the parts that are not null; ev_extra3 the bytea in
-- hexadecimal; ev_extra4 the jsonb if ev_data is the text.
-- locks: none beyond the insert's own. writes: the event table of the queue.
create or replace function qgres._log_entry(
    i_queue text, i_number bigint, i_entry qgres.queue_entry)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    perform pgque.insert_event(
        i_queue, 'entry', coalesce(i_entry.text, i_entry.jsonb::text), i_number::text,
        concat_ws(',', case when i_entry.bytea is not null then 'bytea' end,
                  case when i_entry.jsonb is not null then 'jsonb' end,
                  case when i_entry.text is not null then 'text' end),
        encode(i_entry.bytea, 'hex'),
        case when i_entry.text is not null then i_entry.jsonb::text end);
end;
$$;

-- From now on, sends each entry of an SP queue to the pgque queue "qgres.<name>" as well, and creates
-- that queue if it is missing. Waits until open transactions have published. Returns its name.
-- locks: the queue's row, until the transaction ends. writes: _queue; a queue of pgque.
create or replace function qgres.log_queue(queue_name text)
returns text
language plpgsql security definer
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue  qgres._queue;
    v_name   text;
begin
    select q.* into v_queue
    from qgres._queue q
    where q.queue_id = qgres.queue__get_id($1)
    for no key update;
    if v_queue.queue_type is distinct from 'Serial Publisher' then
        perform qgres._refuse_type(qgres.queue__get_id($1), 'invalid_parameter_value',
            'log_queue() may only be called on Serial Publisher queues',
            'Entries of a Serial Remover queue have no order: send them with pgque.send instead.');
    end if;
    v_name := format('qgres.%s', v_queue.queue_name);
    perform pgque.create_queue(v_name);
    update qgres._queue q set log_queue = v_name where q.queue_id = v_queue.queue_id;
    return v_name;
end;
$$;
