-- Moves the messages of all queues that have used up their delivery attempts to the dead letter
-- queue, regardless of their status: also completed ones, and those that a consumer is working on.
-- Returns how many.
-- locks: none beyond the insert's own. writes: dead_letter_queue, state, finished.
create or replace function postgremq.move_messages_to_dlq()
returns integer
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_dead   record;
    v_count  integer := 0;
begin
    for v_dead in
        select a.queue_id, q.name, array_agg(a.message_id) as ids, array_agg(a.attempts) as attempts
        from postgremq.all_states a
        join postgremq.queue_base q on q.queue_id = a.queue_id
        join postgremq.messages m on m.id = a.message_id
        where q.max_delivery_attempts > 0 and a.attempts >= q.max_delivery_attempts
        group by a.queue_id, q.name
    loop
        insert into postgremq.dead_letter_queue (queue_name, message_id, retry_count)
        select v_dead.name, d.id, d.attempts
        from unnest(v_dead.ids, v_dead.attempts) d(id, attempts)
        on conflict do nothing;
        perform postgremq.remove_states(v_dead.queue_id, v_dead.ids, null);
        v_count := v_count + cardinality(v_dead.ids);
    end loop;
    return v_count;
end;
$$;

-- Lists the dead letters in the order in which they were moved.
create or replace function postgremq.list_dlq_messages()
returns table (
    queue_name varchar, message_id integer, retry_count integer, published_at timestamptz)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query
    select d.queue_name, d.message_id, d.retry_count, d.published_at
    from postgremq.dead_letter_queue d
    order by d.published_at, d.message_id;
end;
$$;

-- Puts messages into a queue as new ones without a delivery attempt: as the next step in the part with
-- their earlier steps, if these still exist.
-- locks: none beyond the insert's own. writes: state, finished.
create or replace function postgremq.put_again(i_queue_id integer, i_messages integer[])
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    perform pgque.check_read_committed('a requeue');
    delete from postgremq.finished f
    where f.queue_id = i_queue_id and f.message_id = any (i_messages);
    perform pg_current_xact_id();
    insert into postgremq.state (
        due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
    select postgremq.due(now(), 0, 0), now(), now(), i_queue_id, m.id, coalesce(s.step + 1, 0), 0,
           coalesce(s.part, postgremq.current_part()), 'pending'
    from unnest(i_messages) m(id)
    left join lateral (
        select s.step, s.part
        from postgremq.state s
        where s.queue_id = i_queue_id and s.message_id = m.id and s.status <> 'moved'
        order by s.step desc
        limit 1
    ) s on true;
    if exists (select from postgremq.state s
               where s.queue_id = i_queue_id and s.message_id = any (i_messages)
                 and s.txid = pg_current_xact_id() and s.part <> postgremq.current_part()) then
        perform nextval('postgremq.late');
    end if;
end;
$$;

-- Puts the dead letters of a queue back into it, as new messages.
-- locks: the dead letters. writes: dead_letter_queue, state.
create or replace function postgremq.requeue_dlq_messages(p_queue_name varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_ids integer[];
begin
    with taken as (
        delete from postgremq.dead_letter_queue d
        where d.queue_name = p_queue_name
        returning d.message_id
    )
    select array_agg(t.message_id order by t.message_id) into v_ids from taken t;
    perform postgremq.put_again(b.queue_id, v_ids)
    from postgremq.queue_base b
    where b.name = p_queue_name and v_ids is not null;
end;
$$;

-- Deletes all dead letters. The messages stay in messages.
-- locks: none beyond the delete's own. writes: dead_letter_queue.
create or replace function postgremq.purge_dlq()
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.dead_letter_queue;
end;
$$;
