-- register_consumer under the name that applications expect. Names with # belong to the slots of
-- partitioned consumers.
-- locks: those of register_consumer. writes: the same.
create or replace function pgque.subscribe(queue text, consumer text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if strpos(consumer, '#') > 0 then
        raise exception 'consumer "%" is not allowed: # is for the slots of partitioned consumers', consumer
            using errcode = 'PQ005',
                  hint = 'Choose a name without #, or subscribe slots with pgque.subscribe_slot.';
    end if;
    return pgque.register_consumer(queue, consumer);
end;
$$;

-- unregister_consumer under the name that applications expect.
create or replace function pgque.unsubscribe(queue text, consumer text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.unregister_consumer(queue, consumer, false);
end;
$$;

-- Returns all messages of the consumer's open or next batch, in order of msg_id, and the same ones again
-- until the ack. A batch of more than i_max_return messages is refused, because ack would also finish those
-- that were not returned; its SQLSTATE and text are those that PgQue's clients know. Batches without events
-- are finished. A maximum of null returns no message and opens no batch. Like next_batch, it has no SET
-- clause.
-- locks: those of open_batch and finish_batch. writes: the same.
create or replace function pgque.receive(
    i_queue text, i_consumer text, i_max_return integer default 100)
returns setof pgque.message
language plpgsql security definer as $$
declare
    v_batch  pg_catalog.int8;
    v_rows   pg_catalog.int8;
begin
    if i_max_return is null then
        return;
    elsif i_max_return operator(pg_catalog.<) 1 then
        perform pgque.refuse_value('a call cannot return %s messages', i_max_return::pg_catalog.text,
                                   'Ask for 1 or more.');
    end if;
    loop
        v_batch := pgque.next_batch(i_queue, i_consumer);
        exit when v_batch is null;
        return query select * from pgque.read_messages(v_batch, i_max_return);
        get diagnostics v_rows = row_count;
        if v_rows operator(pg_catalog.>) i_max_return then
            raise exception 'pgque.receive: batch exceeds max_return of %', i_max_return
                using errcode = 'program_limit_exceeded', hint = pg_catalog.format(
                    'Nothing was received, because an ack would finish the other messages unseen. '
                    'The batch has about %s: pass a higher i_max_return, up to 2147483647.', (
                        select b.seq_end operator(pg_catalog.-) b.seq_start
                        from pgque.get_batch_info(v_batch) b));
        end if;
        exit when v_rows operator(pg_catalog.>) 0;
        perform pgque.finish_batch(v_batch);
    end loop;
end;
$$;

-- Reads messages of an open batch, one more than requested if it has more. JIT is off for the same reason
-- as in get_batch_events.
create or replace function pgque.read_messages(i_batch_id bigint, i_max_return integer)
returns setof pgque.message
language plpgsql set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    return query execute format(  -- quoted: made by batch_select
        'select ev_id, $1, ev_type, ev_data, ev_retry, ev_time, '
        'ev_extra1, ev_extra2, ev_extra3, ev_extra4 '
        'from (%s limit $2::bigint + 1) e order by ev_id',
        pgque.batch_select(i_batch_id, '*'))
    using i_batch_id, i_max_return;
end;
$$;

-- Finishes a batch.
create or replace function pgque.ack(i_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.finish_batch(i_batch_id);
end;
$$;

-- Schedules a message for another delivery, or makes it a dead letter when its retries are used up.
-- locks: those of nack_batch. writes: the same.
create or replace function pgque.nack(
    i_batch_id bigint, i_msg pgque.message, i_retry_after interval default '1 minute',
    i_reason text default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.refuse_slot(pgque.find_batch(i_batch_id), false);
    return pgque.nack_batch(i_batch_id, array[i_msg.msg_id], i_retry_after, i_reason);
end;
$$;
