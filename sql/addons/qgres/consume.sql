-- The last number of an SP queue, or 0: the higher one of both halves.
create or replace function qgres._last_number(i_queue qgres._queue)
returns bigint
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_number bigint;
begin
    execute format(  -- quoted: the queue's number
        'select greatest($1, (select max(e.sequence_number) from qgres.sp_entry_%1$s_0 e), '
        '(select max(e.sequence_number) from qgres.sp_entry_%1$s_1 e))', i_queue.queue_id)
    into v_number using i_queue.first_number - 1;
    return v_number;
end;
$$;

-- The position of a consumer of an SP queue: the higher one of both halves.
create or replace function qgres._position(i_consumer qgres._consumer)
returns bigint
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    c_newest constant text := '(select p.upto_number from qgres.sp_position_%s_%s p '
                              'where p.consumer_id = $2 order by p.after_number desc limit 1)';
    v_number bigint;
begin
    execute format('select greatest($1, %s, %s)',  -- quoted: the queue's number
                   format(c_newest, i_consumer.queue_id, 0), format(c_newest, i_consumer.queue_id, 1))
    into v_number using i_consumer.base_number, i_consumer.consumer_id;
    return v_number;
end;
$$;

-- Returns a consumer's next entries in order, and moves the consumer behind them in the same
-- transaction: commit is the ack. A consumer's position is a log, so moving it leaves no dead rows.
-- A second session that consumes as the same consumer waits for the first. In REPEATABLE READ, a move
-- that the snapshot does not see makes this one a serialization failure, because after_number is a
-- key.
-- The half of the entries may be switched meanwhile, but not emptied, because that needs the
-- consumer's row. A consumer that has read the half that was left moves itself, because maintenance
-- never finds one that is always consuming. One that is moved has read the half that was left, and
-- does not read it again, so that the half is emptied while consumers overlap all the time. With an
-- older snapshot a consumer does not move: its position may be older, and the key that shows this is
-- in the half that it would leave.
-- locks: the consumer's row, until the transaction ends. writes: the consumer's log, _consumer after
-- a switch.
create or replace function qgres.consume(
    queue_id integer, consumer_name text, row_limit integer default 2147483647)
returns table (sequence_number bigint, bytea bytea, jsonb jsonb, text text)
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_consumer  qgres._consumer;
    v_half      smallint;
    v_first     bigint;
begin
    if row_limit < 0 then
        perform qgres._check_limit(row_limit);
    end if;
    select c.* into v_consumer
    from qgres._consumer c
    where c.queue_id = $1 and lower(c.consumer_name) = lower($2)
    for no key update;
    if not found then
        perform qgres._refuse_consumer($1, $2);
    end if;
    select q.half, q.first_number into v_half, v_first from qgres._queue q where q.queue_id = $1;
    if v_consumer.half <> v_half and current_setting('transaction_isolation') like 'read %' then
        v_consumer := qgres._move_consumer(v_consumer, v_half, v_first);
    end if;
    return query execute format(
        'select * from qgres.sp_consume%s_%s($1, $2, $3)',  -- quoted: numbers
        case when v_consumer.half = v_half then v_half end, v_consumer.queue_id)
    using v_consumer, v_first, row_limit;
end;
$$;

-- Raises the error of consume for an unknown queue, one of the other type, or an unknown consumer.
create or replace function qgres._refuse_consumer(i_queue_id integer, i_consumer text)
returns void
language plpgsql set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres.queue := qgres.queue__get(i_queue_id);
begin
    if v_queue.queue_type <> 'Serial Publisher' then
        perform qgres._refuse_type(i_queue_id, 'invalid_parameter_value',
            'consume() may only be called on Serial Publisher queues',
            'Perhaps you want to use the "Remove"() function instead?');
    end if;
    raise exception using
        errcode = 'no_data_found',
        message = 'consumer does not exist',
        detail = format('queue "%s", consumer "%s"', v_queue.queue_name,
                        coalesce(i_consumer, '<NULL>')),
        hint = format('Register it with: select qgres.consumer__register(%L, %L);',
                      v_queue.queue_name, i_consumer);
end;
$$;

-- The form that takes the queue's name.
-- locks: those of the other form. writes: the same.
create or replace function qgres.consume(
    queue_name text, consumer_name text, row_limit integer default 2147483647)
returns table (sequence_number bigint, bytea bytea, jsonb jsonb, text text)
language sql set search_path = qgres, pg_catalog, pg_temp
as $$
    select c.* from qgres.consume(qgres.queue__get_id($1), $2, $3) c;
$$;
