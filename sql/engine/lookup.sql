-- Raises the error for an argument that is null or out of its range. The message may have a place for
-- its value. Volatile, because a planner may call any other function with constant arguments.
create or replace function pgque.refuse_value(i_message text, i_value text, i_hint text)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = 'PQ005',
        message = format(i_message, coalesce(i_value, 'null')),
        hint = i_hint;
end;
$$;

-- Looks up a queue by its name, or raises an error that says what to do. Only this function raises
-- that error.
create or replace function pgque.find_queue(i_queue text)
returns pgque.queue
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue;
begin
    if i_queue is null then
        perform pgque.refuse_value('the queue name is null', null, 'Pass the name of a queue.');
    end if;

    select * into v_queue from pgque.queue q where q.queue_name = i_queue;
    if not found then
        raise exception using
            errcode = 'PQ001',
            message = format('queue not found: queue "%s" does not exist', i_queue),
            hint = case
                when i_queue like 'postgremq.%' then
                    format('Log the topic: select postgremq.log_topic(%1$L); or, to publish to it '
                           'without a log: select postgremq.unlog_topic(%1$L);', substr(i_queue, 11))
                when i_queue like 'qgres.%' then
                    format('Log the serial queue: select qgres.log_queue(%1$L); or, to publish to it '
                           'without a log: select qgres.unlog_queue(%1$L);', substr(i_queue, 7))
                else
                    format('Create it with: select pgque.create_queue(%L);', i_queue)
            end;
    end if;
    return v_queue;
end;
$$;

-- The same for calls that do nothing if the queue does not exist: returns null then.
create or replace function pgque.look_for_queue(i_queue text)
returns pgque.queue
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return pgque.find_queue(i_queue);
exception
    when sqlstate 'PQ001' then
        return null;
end;
$$;

-- A subscription with its newest position, by names; unknown queues and consumers get different errors.
-- Volatile, like every function that reads the logs: its snapshot must be taken after it has the lock.
-- An older snapshot would see an empty log after a compaction that it waited for.
create or replace function pgque.find_subscription(i_queue text, i_consumer text)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue);
    v_sub   pgque.subscription;
    v_main  pgque.partition_consumer;
begin
    if i_consumer is null then
        perform pgque.refuse_value('the consumer name is null', null,
                                   'Pass the name of a registered consumer.');
    end if;

    select s.* into v_sub
    from pgque.subscription s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = v_queue.queue_id
      and c.co_name = i_consumer;
    if not found then
        perform pgque.check_positions_visible();
        -- Registered under the name of a slot, a consumer would get the events of all keys.
        select * into v_main
        from pgque.partition_consumer c
        where c.queue_id = v_queue.queue_id and c.co_name = split_part(i_consumer, '#', 1);
        raise exception using
            errcode = 'PQ002',
            message = format('not subscriber to queue: consumer "%s" %s', i_consumer, case
                when v_main.n is null then format('is not registered on queue "%s"', i_queue)
                else format('is not a slot on queue "%s", where "%s" has %s slots now', i_queue,
                            v_main.co_name, v_main.n) end),
            hint = case
                when v_main.n is null then format(
                    'Register it with: select pgque.register_consumer(%L, %L);', i_queue, i_consumer)
                else format('Use the name of a slot, from %1$s#0/%2$s to %1$s#%3$s/%2$s; one that is '
                            'missing is subscribed with: select pgque.subscribe_slots(%4$L, %1$L, '
                            '%2$s);', v_main.co_name, v_main.n, v_main.n - 1, i_queue) end;
    end if;
    return v_sub;
end;
$$;

-- The same for calls that do nothing if the queue or the consumer does not exist: returns null then.
create or replace function pgque.look_for_subscription(i_queue text, i_consumer text)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    return pgque.find_subscription(i_queue, i_consumer);
exception
    when sqlstate 'PQ001' or sqlstate 'PQ002' then
        return null;
end;
$$;

-- Called when a consumer or batch is not found: raises a serialization failure if this transaction may
-- be unable to see it. A transaction sees a position of each registration, unless its snapshot is older
-- than a compaction.
create or replace function pgque.check_positions_visible()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if exists (select from pgque.subscription_base s
               where not exists (select from pgque.position_log p where p.sub_id = s.sub_id)) then
        raise exception 'the positions of consumers are not in this transaction''s snapshot'
            using errcode = 'serialization_failure',
                  hint = 'The transaction began before positions were compacted: roll back and try '
                         'again.';
    end if;
end;
$$;

-- Refuses an isolation level stricter than READ COMMITTED. A function that truncates must see every
-- committed row; otherwise it would lose rows that were committed after an old snapshot.
create or replace function pgque.check_read_committed(i_work text)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception '% cannot run in a % transaction', i_work,
                        current_setting('transaction_isolation')
            using errcode = 'PQ013',
                  hint = format('Run it in a transaction of its own, begun with: begin isolation '
                                'level read committed; where that is not the default: alter role '
                                '%I set default_transaction_isolation = ''read committed'';',
                                session_user);
    end if;
end;
$$;

-- The subscription whose open batch this is. It reads only the batch's newest row, since a batch that
-- is renewed for hours has thousands of rows. If that row is no longer its subscription's position, the
-- batch is finished or went to another subscription.
create or replace function pgque.find_batch(i_batch_id bigint)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    select s.* into v_sub
    from (select l.sub_id, l.pos_seq
          from pgque.position_log l
          where l.sub_batch = i_batch_id
          order by l.pos_seq desc
          limit 1) p
    join pgque.subscription s on s.sub_id = p.sub_id and s.pos_seq = p.pos_seq;
    if not found then
        perform pgque.check_positions_visible();
        raise exception 'batch not found: batch % is not open', coalesce(i_batch_id::text, 'null')
            using errcode = 'PQ003', hint = 'It was finished already, taken back, or never '
                                            'existed; ask next_batch for the open one.';
    end if;
    return v_sub;
end;
$$;
