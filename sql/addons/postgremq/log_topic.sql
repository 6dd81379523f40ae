-- Publishes the messages of a topic as events of a queue of pgque, too, from now on and in the same
-- transaction, for consumers that read in batches. An event has type message, the payload as its
-- data, the message's id as ev_extra1, and the time of delivery as ev_extra2 if that is later.
-- Creates the queue postgremq.<topic> if it is missing; returns its name. Call it again at will.
-- locks: none beyond the insert's own. writes: topic_log; those of create_queue.
create or replace function postgremq.log_topic(p_topic varchar)
returns text
language plpgsql security definer
set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_queue text := format('postgremq.%s', p_topic);
begin
    if not exists (select from postgremq.topics t where t.name = p_topic) then
        perform postgremq.refuse_topic(p_topic, 'raise_exception');
    end if;
    perform pgque.create_queue(v_queue);
    insert into postgremq.topic_log (topic_name, queue_name) values (p_topic, v_queue)
    on conflict do nothing;
    return v_queue;
end;
$$;

-- Publishes no more events for a topic. The queue stays, with the events that were published.
-- locks: the row in topic_log. writes: topic_log.
create or replace function postgremq.unlog_topic(p_topic varchar)
returns void
language plpgsql security definer
set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.topic_log l where l.topic_name = p_topic;
end;
$$;
