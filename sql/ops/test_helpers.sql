-- For tests of applications: sends an event of type "test" and requests a tick. Events are
-- delivered after their commit, so call test_consume in another transaction. Returns the event's
-- id.
-- locks: those of send. writes: the queue's current event table, tick_request.
forward pgque.test_send(i_queue text, i_payload jsonb) returns bigint
as pgque.test_send(i_queue, 'test', i_payload);

-- The same with another type.
-- locks: those of send. writes: the same.
create or replace function pgque.test_send(i_queue text, i_type text, i_payload jsonb)
returns bigint
language plpgsql security definer
as $$
declare
    v_id bigint := pgque.send(i_queue, i_type, i_payload);
begin
    perform pgque.force_next_tick(i_queue);
    return v_id;
end;
$$;

-- Ticks, takes the consumer's next batch with events, acks it and returns its messages. Raises an
-- error, and acks nothing, if there is no event or if an event has another type than expected.
-- locks: those of ticker, receive and ack. writes: the same.
create or replace function pgque.test_consume(
    i_queue text, i_consumer text, i_expected_type text default null)
returns setof pgque.message
language plpgsql security definer
as $$
declare
    v_messages  pgque.message[];
    v_other     pgque.message;
begin
    perform pgque.force_next_tick(i_queue);
    perform pgque.ticker(i_queue);
    v_messages := array(select m from pgque.receive(i_queue, i_consumer, 2147483647) m);
    if cardinality(v_messages) = 0 then
        raise exception using
            errcode = 'assert_failure',
            message = format('consumer "%s" on queue "%s" has no event to consume', i_consumer, i_queue),
            hint = 'Send one in a transaction of its own; an event is delivered after its commit.';
    end if;
    select m.* into v_other
    from unnest(v_messages) m
    where m.type is distinct from i_expected_type
    limit 1;
    if found and i_expected_type is not null then
        raise exception using
            errcode = 'assert_failure',
            message = format('event %s is of type "%s", expected "%s"',
                             v_other.msg_id, v_other.type, i_expected_type),
            detail = format('Its payload: %s', v_other.payload),
            hint = format('Its batch %s stays open.', v_other.batch_id);
    end if;
    perform pgque.ack(v_messages[1].batch_id);
    return query select m.* from unnest(v_messages) m;
end;
$$;

-- Raises an error if a consumer of the queue has not finished all events, including events without
-- a tick, in an open batch or waiting for a retry, or if events are scheduled (send_at). Counts
-- exactly, by reading the unfinished events.
create or replace function pgque.assert_empty(i_queue text)
returns boolean
language plpgsql security definer
as $$
declare
    v_queue      pgque.queue := pgque.find_queue(i_queue);
    v_sub        record;
    v_scheduled  bigint;
begin
    for v_sub in
        select c.co_name,
               pgque.count_unfinished(s) as events,
               (select count(*) from pgque.retry_queue r where r.ev_owner = s.sub_id) as again
        from pgque.subscription s
        join pgque.consumer c on c.co_id = s.sub_consumer
        where s.sub_queue = v_queue.queue_id
        order by c.co_name
    loop
        if v_sub.events > 0 or v_sub.again > 0 then
            raise exception using
                errcode = 'assert_failure',
                message = format('queue "%s" is not empty: consumer "%s" has %s events to finish and '
                                 '%s to be delivered again', i_queue, v_sub.co_name, v_sub.events,
                                 v_sub.again),
                hint = 'Consume them, with pgque.test_consume or pgque.receive and pgque.ack.';
        end if;
    end loop;
    select count(*) into v_scheduled from pgque.delayed_events d where d.de_queue_name = i_queue;
    if v_scheduled > 0 then
        raise exception using
            errcode = 'assert_failure',
            message = format('queue "%s" is not empty: %s events wait for their time',
                             i_queue, v_scheduled),
            hint = 'Cancel them with pgque.cancel_scheduled, or wait and run pgque.maint().';
    end if;
    return true;
end;
$$;

-- Returns the number of a subscription's unfinished events. For a worker of a shared consumer,
-- these are the events of its batch; for a slot, the events of its keys.
create or replace function pgque.count_unfinished(i_sub pgque.subscription)
returns bigint
language plpgsql
as $$
declare
    v_after  pg_snapshot;
    v_up_to  pg_snapshot;
    v_slot   pgque.slot;
    v_count  bigint;
begin
    if i_sub.sub_last_tick is null then
        return 0;
    end if;
    perform pgque.check_adopted();
    v_after := (pgque.find_tick(i_sub.sub_queue, i_sub.sub_last_tick)).tick_snapshot;
    if i_sub.sub_main is not null then
        v_up_to := (pgque.find_tick(i_sub.sub_queue, i_sub.sub_next_tick)).tick_snapshot;
    end if;
    select s.* into v_slot from pgque.slot s where s.sub_id = i_sub.sub_id;
    execute format(
        'select count(*) from pgque.%I e '
        'where e.ev_txid >= pg_snapshot_xmin($1) '
        'and not pg_visible_in_snapshot(e.ev_txid, $1) '
        'and ($2 is null or pg_visible_in_snapshot(e.ev_txid, $2)) '
        'and (e.ev_owner is null or e.ev_owner = $3) '
        'and ($4 is null or $4 = pgque.slot_of_key(e.ev_extra1, $5))', format('event_%s', i_sub.sub_queue))
    into v_count
    using v_after, v_up_to, coalesce(i_sub.sub_main, i_sub.sub_id), v_slot.slot, v_slot.n;
    return v_count;
end;
$$;

-- Raises an error if the queue has dead letters.
create or replace function pgque.assert_dlq_empty(i_queue text)
returns boolean
language plpgsql security definer
as $$
declare
    v_queue   pgque.queue := pgque.find_queue(i_queue);
    v_count   bigint;
    v_reason  text;
begin
    select count(*), (array_agg(d.dl_reason order by d.dl_id desc))[1] into v_count, v_reason
    from pgque.dead_letter d
    where d.dl_queue_id = v_queue.queue_id;
    if v_count > 0 then
        raise exception using
            errcode = 'assert_failure',
            message = format('queue "%s" has %s dead letters, the newest because: %s',
                             i_queue, v_count, coalesce(v_reason, 'no reason given')),
            hint = format('See them with: select * from pgque.dlq_inspect(%L);', i_queue);
    end if;
    return true;
end;
$$;
