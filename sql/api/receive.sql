-- register_consumer under the name that applications expect. Names with # belong to the slots of
-- partitioned consumers.
-- locks: those of register_consumer. writes: the same.
create or replace function pgque.subscribe(queue text, consumer text)
returns integer security definer
as $$
begin
    if strpos(consumer, '#') > 0 then
        raise exception 'no consumer "%": # is for the slots of partitioned consumers', consumer
            using errcode = 'PQ005',
                  hint = 'Choose a name without #, or subscribe slots with pgque.subscribe_slot.';
    end if;
    return pgque.register_consumer(queue, consumer);
end;
$$;

-- unregister_consumer under the name that applications expect.
forward pgque.unsubscribe(queue text, consumer text)
as pgque.unregister_consumer(queue, consumer, false);

-- Returns messages of the consumer's open or next batch, in order of msg_id; from a larger batch, any
-- i_max_return messages, because finding the first ones would read all of them. ack finishes the whole
-- batch, including messages beyond i_max_return; until then, receive returns the same messages. Batches
-- without events are finished. A maximum of null returns no message and opens no batch. Like
-- next_batch, it has no SET clause.
-- locks: those of open_batch and finish_batch. writes: the same.
create or replace function pgque.receive(
    i_queue text, i_consumer text, i_max_return integer default 100)
returns setof pgque.message security definer
as $$
declare
    v_batch pg_catalog.int8;
begin
    if i_max_return is null then
        return;
    elsif i_max_return operator(pg_catalog.<) 1 then
        perform pgque.refuse_value('no batch returns %s messages', i_max_return::pg_catalog.text,
                                   'Ask for 1 or more.');
    end if;
    loop
        v_batch := pgque.next_batch(i_queue, i_consumer);
        exit when v_batch is null;
        return query select * from pgque.read_messages(v_batch, i_max_return);
        exit when found;
        perform pgque.finish_batch(v_batch);
    end loop;
end;
$$;

-- Reads messages of an open batch. JIT is off for the reason that get_batch_events has.
create or replace function pgque.read_messages(i_batch_id bigint, i_max_return integer)
returns setof pgque.message
set jit = off
as $$
begin
    return query execute format(  -- quoted: made by batch_select
        'select ev_id, $1, ev_type, ev_data, ev_retry, ev_time, '
        'ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        'from (%s limit $2) e order by ev_id',
        pgque.batch_select(i_batch_id, '*'))
    using i_batch_id, i_max_return;
end;
$$;

-- Finishes a batch.
forward pgque.ack(i_batch_id bigint)
as pgque.finish_batch(i_batch_id);

-- Schedules a message for another delivery, or makes it a dead letter when its retries are used up.
-- locks: those of nack_batch. writes: the same.
create or replace function pgque.nack(
    i_batch_id bigint, i_msg pgque.message, i_retry_after interval default '1 minute',
    i_reason text default null)
returns integer security definer
as $$
begin
    perform pgque.refuse_slot(pgque.find_batch(i_batch_id), false);
    return pgque.nack_batch(i_batch_id, array[i_msg.msg_id], i_retry_after, i_reason);
end;
$$;
