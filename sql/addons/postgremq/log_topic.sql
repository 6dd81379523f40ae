-- Publishes the messages of a topic as events of a queue of pgque, too, from now on and in the same
-- transaction, for consumers that read in batches. An event has type message, the payload as its
-- data, the message's id as ev_extra1, and the time of delivery as ev_extra2 if that is later.
-- Creates the queue postgremq.<topic> if it is missing; returns its name. The call can be repeated.
-- locks: none beyond the insert's own. writes: topic_log; those of pgque.create_log.
create or replace function postgremq.log_topic(p_topic varchar)
returns text
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_queue text;
begin
    if not exists (select from postgremq.topics t where t.name = p_topic) then
        perform postgremq.refuse_topic(p_topic, 'raise_exception');
    end if;
    v_queue := pgque.create_log('postgremq', p_topic);
    insert into postgremq.topic_log (topic_name, queue_name) values (p_topic, v_queue)
    on conflict do nothing;
    return v_queue;
end;
$$;

-- Returns the queue that gets the messages of a topic, or null: the topic does not exist, is not
-- logged, or its queue was dropped.
create or replace function postgremq.logged_as(p_topic varchar)
returns text
language sql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
    select q.queue_name
    from postgremq.topic_log l
    join pgque.queue q on q.queue_name = l.queue_name and q.queue_addon = 'postgremq'
    where l.topic_name = p_topic;
$$;

-- Granted here, because consumers of the log call it, and not consumers of messages.
grant execute on function postgremq.logged_as(varchar) to pgque_reader, pgque_admin;

-- Publishes no more events for a topic. The queue stays, with its consumers and the events that were
-- published, until it is dropped with pgque.drop_queue.
-- locks: the row in topic_log. writes: topic_log.
create or replace function postgremq.unlog_topic(p_topic varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.topic_log l where l.topic_name = p_topic;
end;
$$;
