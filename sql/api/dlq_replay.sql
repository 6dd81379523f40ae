-- Sends a dead letter again as a new event, only to its consumer. The event's retries start again.
-- Returns the new event's id. If the event cannot be sent, the dead letter stays.
-- locks: the dead letter. writes: dead_letter, retry_queue, the queue's current event table.
create or replace function pgque.dlq_replay(i_dead_letter_id bigint)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_dl pgque.dead_letter;
begin
    select d.* into v_dl
    from pgque.dead_letter d
    where d.dl_id = i_dead_letter_id
    for update;
    if not found then
        raise exception 'dead letter % does not exist', coalesce(i_dead_letter_id::text, 'null')
            using errcode = 'PQ010', hint = 'It was replayed or purged, or dropped with its queue '
                                            'or consumer; see pgque.dlq_inspect(queue).';
    end if;
    return pgque.resend_dead_letter(v_dl);
end;
$$;

-- Replays all dead letters of a queue. A dead letter that cannot be replayed stays, and does not stop
-- the others. Returns how many were replayed, how many stay, and the first error. Replays 0 if the
-- queue does not exist.
-- locks: the dead letters. writes: dead_letter, retry_queue, the queue's current event table.
create or replace function pgque.dlq_replay_all(
    i_queue_name text, out replayed bigint, out failed bigint, out first_error text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    replayed := 0;
    failed := 0;
    if (pgque.look_for_queue(i_queue_name)).queue_id is not null then
        select r.* into replayed, failed, first_error
        from pgque.dlq_replay_matching(i_queue_name) r;
    end if;
end;
$$;

-- Replays the dead letters of a queue that match, the oldest first, otherwise like dlq_replay_all. i_reason
-- is a pattern of LIKE. i_since (inclusive) and i_until (exclusive) limit the time at which the events became
-- dead letters. With i_max_id only dead letters up to this id are replayed: several calls with one i_max_id
-- replay no event that became a dead letter again in between. Dead letters that another session is replaying
-- are skipped.
-- locks: the dead letters. writes: dead_letter, retry_queue, the queue's current event table.
create or replace function pgque.dlq_replay_matching(
    i_queue_name text, i_reason text default null, i_type text default null,
    i_since timestamptz default null, i_until timestamptz default null,
    i_limit integer default null, i_max_id bigint default null,
    out replayed bigint, out failed bigint, out first_error text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue_name);
    v_dl     pgque.dead_letter;
begin
    if i_limit < 0 or i_since > i_until then
        raise exception 'cannot replay % dead letters from % until %',
                        coalesce(i_limit::text, 'all'), coalesce(i_since::text, 'ever'),
                        coalesce(i_until::text, 'now')
            using errcode = 'PQ005',
                  hint = 'Give a limit of 0 or more, and a since that is not after until.';
    end if;
    if v_queue.queue_disable_insert then
        perform pgque.refuse_insert(v_queue.queue_name);
    end if;
    replayed := 0;
    failed := 0;
    for v_dl in
        select d.*
        from pgque.dead_letter d
        where d.dl_queue_id = v_queue.queue_id
          and (i_reason is null or d.dl_reason like i_reason)
          and (i_type is null or d.ev_type = i_type)
          and (i_since is null or d.dl_time >= i_since)
          and (i_until is null or d.dl_time < i_until)
          and (i_max_id is null or d.dl_id <= i_max_id)
        order by d.dl_id
        limit i_limit
        for update skip locked
    loop
        begin
            perform pgque.resend_dead_letter(v_dl);
            replayed := replayed + 1;
        exception
            when others then
                failed := failed + 1;
                first_error := coalesce(first_error, sqlerrm);
        end;
    end loop;
end;
$$;

-- Makes a dead letter, which the caller has locked, an event for its consumer only. Refused if the queue
-- accepts no events, the consumer is not registered, or the batch of the event is open: a worker that
-- takes it over gets the event again, and may make it a dead letter again. A retry of the event is removed.
-- locks: none beyond the caller's. writes: dead_letter, retry_queue, the queue's current event table.
create or replace function pgque.resend_dead_letter(i_dead_letter pgque.dead_letter)
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue     pgque.queue;
    v_owner     integer;
    v_consumer  text;
begin
    select q.* into v_queue
    from pgque.queue q
    where q.queue_id = i_dead_letter.dl_queue_id;
    select c.co_name, s.sub_id into v_consumer, v_owner
    from pgque.consumer c
    left join pgque.subscription_base s
           on s.sub_queue = v_queue.queue_id and s.sub_consumer = c.co_id
    where c.co_id = i_dead_letter.dl_consumer_id;
    if v_owner is null then
        raise exception 'dead letter % has no consumer to go to: "%" is not registered on queue '
                        '"%"', i_dead_letter.dl_id, v_consumer, v_queue.queue_name
            using errcode = 'PQ002',
                  hint = format('Register it again with: select pgque.register_consumer(%L, %L); '
                                'or send the payload as a new event.', v_queue.queue_name,
                                v_consumer);
    end if;
    if exists (select from pgque.open_batches(v_queue.queue_id, v_owner) b
               where pg_visible_in_snapshot(i_dead_letter.ev_txid, b.next_snapshot)
                 and not pg_visible_in_snapshot(i_dead_letter.ev_txid, b.last_snapshot)
                 and exists (select from pgque.pick_events(b.batch_id, array[i_dead_letter.ev_id]))) then
        raise exception 'dead letter % is an event of a batch that "%" has not finished on queue '
                        '"%"', i_dead_letter.dl_id, v_consumer, v_queue.queue_name
            using errcode = 'PQ016', hint = 'Replay it after the batch is finished; before, the '
                                            'event could be delivered twice.';
    end if;

    delete from pgque.dead_letter d where d.dl_id = i_dead_letter.dl_id;
    delete from pgque.retry_queue r where r.ev_owner = v_owner and r.ev_id = i_dead_letter.ev_id;
    return pgque.insert_event_raw(
        v_queue.queue_name, null, null, v_owner, null, i_dead_letter.ev_type,
        i_dead_letter.ev_data, i_dead_letter.ev_extra1, i_dead_letter.ev_extra2,
        i_dead_letter.ev_extra3, i_dead_letter.ev_extra4);
end;
$$;
