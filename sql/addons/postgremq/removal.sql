-- Ends the states of messages in a queue, of all messages if i_messages is null: inserts a step "removed",
-- so that a concurrent claim either comes first, and is superseded, or fails. With
-- i_completed_before, it spares messages that are not completed, or were later. Waits for transactions
-- that have changed these messages, and before that for maintenance, which would copy them to
-- finished. An older snapshot would not see what maintenance has copied, so it is refused. Returns how
-- many it removed.
-- locks: the rows that it supersedes; finished against maintenance. writes: state, finished.
create or replace function postgremq.remove_states(
    i_queue_id integer, i_messages integer[], i_completed_before timestamptz)
returns integer
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_before  bigint;
    v_after   integer[];
    v_gone    integer[] := array[]::integer[];
    v_count   integer;
begin
    perform pgque.check_read_committed('a removal of messages');
    lock table postgremq.finished in row exclusive mode;
    loop
        with last as materialized (
            select s.message_id, s.step, s.part, s.attempts, s.vt
            from postgremq.last_state s
            where s.queue_id = i_queue_id and (i_messages is null or s.message_id = any (i_messages))
              and (i_completed_before is null
                   or s.status = 'completed' and s.processed_at < i_completed_before)
            for update of s  -- so that consumers skip them
        ), removed as (
            insert into postgremq.state (vt, queue_id, message_id, step, attempts, part, status)
            select l.vt, i_queue_id, l.message_id, l.step + 1, l.attempts, l.part, 'removed'
            from last l
            on conflict do nothing
            returning message_id
        )
        select (select count(*) from last), array(select r.message_id from removed r)
        into v_before, v_after;
        v_gone := v_gone || v_after;
        exit when v_before = cardinality(v_after);
    end loop;
    with deleted as (
        delete from postgremq.finished f
        where f.queue_id = i_queue_id and (i_messages is null or f.message_id = any (i_messages))
          and (i_completed_before is null or f.processed_at < i_completed_before)
        returning f.message_id
    )
    select count(*) into v_count
    from (select unnest(v_gone) union select d.message_id from deleted d) gone;
    return v_count;
end;
$$;

-- Removes deleted messages from the queues of their topic.
-- locks: none beyond the insert's own. writes: state, finished.
create or replace function postgremq.forget_messages()
returns trigger
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    perform postgremq.remove_states(b.queue_id, d.ids, null)
    from (select o.topic_name, array_agg(o.id) as ids from gone o group by o.topic_name) d
    join postgremq.queue_base b on b.topic_name = d.topic_name;
    return null;
end;
$$;

create or replace trigger after_message_delete
after delete on postgremq.messages
referencing old table as gone
for each statement execute function postgremq.forget_messages();

-- Removes one message from a queue. It stays in other queues, and in messages.
-- locks: none beyond the insert's own. writes: state, finished.
create or replace function postgremq.delete_queue_message(
    p_queue_name varchar, p_message_id integer)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    perform postgremq.remove_states(b.queue_id, array[p_message_id], null)
    from postgremq.queue_base b
    where b.name = p_queue_name and p_message_id is not null;
end;
$$;

-- Removes all messages from a queue, regardless of their states.
-- locks: none beyond the insert's own. writes: state, finished.
create or replace function postgremq.clean_up_queue(p_queue varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    perform postgremq.remove_states(b.queue_id, null, null)
    from postgremq.queue_base b
    where b.name = p_queue;
end;
$$;

-- Deletes all messages of a topic, also from its queues and from the dead letter queue.
-- locks: none beyond the delete's own. writes: messages, and what its triggers write.
create or replace function postgremq.clean_up_topic(p_topic varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.messages m where m.topic_name = p_topic;
end;
$$;

-- Deletes all messages, also from queues and from the dead letter queue. Topics and queues stay.
-- locks: none beyond the delete's own. writes: messages, and what its triggers write.
create or replace function postgremq.purge_all_messages()
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.messages;
end;
$$;

-- Removes messages from queues that were completed longer ago than this. They stay in messages.
-- Returns how many.
-- locks: none beyond the insert's own. writes: state, finished.
create or replace function postgremq.cleanup_completed_messages(p_older_than_hours integer default 24)
returns integer
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_before  timestamptz := now() - make_interval(hours => p_older_than_hours);
    v_old     record;
    v_count   integer := 0;
begin
    for v_old in
        select a.queue_id, array_agg(a.message_id) as ids
        from postgremq.all_states a
        where a.status = 'completed' and a.processed_at < v_before
        group by a.queue_id
    loop
        v_count := v_count + postgremq.remove_states(v_old.queue_id, v_old.ids, v_before);
    end loop;
    return v_count;
end;
$$;
