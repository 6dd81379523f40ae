-- Registers a consumer on an SP queue. It begins after the last number that was published, for which
-- it waits until open transactions have published or rolled back.
-- locks: the queue's row, until the transaction ends. writes: _consumer.
create or replace function qgres.consumer__register(queue_name text, consumer_name text)
returns void
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue qgres._queue := qgres._lock_publisher(
        $1, 'consumers may only be registered on "Serial Publisher" queues',
        'A Serial Remover queue has no consumers: call "Remove"() on it.');
begin
    if consumer_name is null then
        raise exception using
            errcode = 'not_null_violation',
            message = 'the name of the consumer is null',
            hint = 'Pass a name.';
    end if;
    insert into qgres._consumer as c (queue_id, consumer_name, half, base_number)
    values (v_queue.queue_id, $2, v_queue.half, qgres._last_number(v_queue))
    on conflict (queue_id, lower(c.consumer_name)) do nothing;
    if not found then
        raise exception using
            errcode = 'unique_violation',
            message = format('consumer "%s" on queue "%s" already exists', $2, $1),
            hint = 'Names of queues and consumers are case-insensitive.';
    end if;
end;
$$;

-- Drops a consumer. Entries that only it had not read are no longer kept. If it is the last one, the entries
-- after its position stay.
-- locks: the consumer's and the queue's row, until the transaction ends. writes: _consumer, _queue.
create or replace function qgres.consumer__drop(queue_name text, consumer_name text)
returns void
language plpgsql security definer set search_path = qgres, pg_catalog, pg_temp
as $$
declare
    v_queue     qgres._queue;
    v_consumer  qgres._consumer;
    v_floor     bigint;
begin
    -- Locked in the same order as by a consumer that publishes.
    perform from qgres._consumer c
    where c.queue_id = qgres.queue__get_id($1) and lower(c.consumer_name) = lower($2)
    for update;
    v_queue := qgres._lock_publisher(
        $1, 'consumers may only be dropped on "Serial Publisher" queues',
        'A Serial Remover queue has no consumers: call "Remove"() on it.');
    delete from qgres._consumer c
    where c.queue_id = v_queue.queue_id and lower(c.consumer_name) = lower($2)
    returning c.* into v_consumer;
    if not found then
        raise exception using
            errcode = 'no_data_found',
            message = format('consumer "%s" on queue "%s" is not registered',
                             coalesce($2, '<NULL>'), $1),
            hint = format('Register it with: select qgres.consumer__register(%L, %L);', $1, $2);
    end if;
    select min(qgres._position(c)) into v_floor
    from qgres._consumer c
    where c.queue_id = v_queue.queue_id;
    v_floor := coalesce(v_floor, qgres._position(v_consumer));
    update qgres._queue q
    set floor_number = greatest(q.floor_number, v_floor)
    where q.queue_id = v_queue.queue_id;
end;
$$;
