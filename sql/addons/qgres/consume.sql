-- The last number of an SP queue, or 0.
-- locks: none. writes: nothing.
create or replace function qgres._last_number(i_queue qgres._queue)
returns bigint
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_number bigint;
begin
    execute format('select max(sequence_number) from %s',  -- quoted: made of numbers
                   qgres._table('sp_entry', i_queue.queue_id, i_queue.half))
    into v_number;
    return coalesce(v_number, i_queue.first_number - 1);
end;
$$;

-- Where a consumer stands, and the last number of its queue. The consumer's newest move is the row
-- with the highest after_number.
-- locks: none. writes: nothing.
create or replace function qgres._positions(
    i_queue qgres._queue, i_consumer qgres._consumer,
    out position_number bigint, out last_number bigint)
returns record
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
as $$
begin
    execute format(  -- quoted: made of numbers
        'select coalesce((select p.upto_number from qgres.sp_position_%1$s_%3$s p '
        'where p.consumer_id = $1 order by p.after_number desc limit 1), $2), '
        'coalesce((select e.sequence_number from qgres.sp_entry_%1$s_%2$s e '
        'order by e.sequence_number desc limit 1), $3 - 1)',
        i_queue.queue_id, i_queue.half, i_consumer.half)
    into position_number, last_number
    using i_consumer.consumer_id, i_consumer.base_number, i_queue.first_number;
end;
$$;

-- Returns a consumer's next entries in order, and moves the consumer behind them in the same
-- transaction: commit is the ack. A consumer's position is a log, so moving it leaves no dead rows.
-- A second session that consumes as the same consumer waits for the first. In REPEATABLE READ, a move
-- that the snapshot does not see makes this one a serialization failure, because after_number is a
-- key.
--
-- The numbers have no gaps and become visible in order, so the end of the page follows from its
-- beginning. The half of the entries may be switched meanwhile, but not emptied, because that needs
-- the consumer's row.
-- locks: the consumer's row, until the transaction ends. writes: the consumer's log.
create or replace function qgres.consume(
    queue_id integer, consumer_name text, row_limit integer default 2147483647)
returns table (sequence_number bigint, bytea bytea, jsonb jsonb, text text)
language plpgsql security definer
set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_consumer  qgres._consumer;
    v_queue     qgres._queue;
    v_after     bigint;
    v_upto      bigint;
    v_from      text;
begin
    perform qgres._check_limit(row_limit);
    select c.* into v_consumer
    from qgres._consumer c
    where c.queue_id = $1 and lower(c.consumer_name) = lower($2)
    for no key update;
    if not found then
        perform qgres._refuse_consumer($1, $2);
    end if;
    select q.* into v_queue from qgres._queue q where q.queue_id = $1;
    select p.position_number, p.last_number into v_after, v_upto
    from qgres._positions(v_queue, v_consumer) p;
    v_upto := least(v_after + row_limit, v_upto);
    if v_upto <= v_after then
        return;
    end if;
    v_from := qgres._table('sp_entry', v_queue.queue_id, v_queue.half);
    if v_after + 1 < v_queue.first_number then
        v_from := format('(select * from %s union all select * from %s)', v_from,
                         qgres._table('sp_entry', v_queue.queue_id, 1 - v_queue.half));
    end if;
    return query execute format(  -- quoted: made of numbers
        'with moved as (insert into %s values ($3, $1, $2) on conflict do nothing) '
        'select e.sequence_number, e.bytea, e.jsonb, e.text from %s e '
        'where e.sequence_number > $1 and e.sequence_number <= $2 order by e.sequence_number',
        qgres._table('sp_position', v_queue.queue_id, v_consumer.half), v_from)
    using v_after, v_upto, v_consumer.consumer_id;
end;
$$;

-- Raises the error of consume for an unknown queue, one of the other type, or an unknown consumer.
-- locks: none. writes: nothing.
create or replace function qgres._refuse_consumer(i_queue_id integer, i_consumer text)
returns void
language plpgsql
set search_path = qgres, pg_catalog, pg_temp
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
language sql
set search_path = qgres, pg_catalog, pg_temp
as $$
    select c.* from qgres.consume(qgres.queue__get_id($1), $2, $3) c;
$$;
