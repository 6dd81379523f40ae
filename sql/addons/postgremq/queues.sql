-- Creates a topic; returns its name. A topic that exists stays as it is.
-- locks: none beyond the insert's own. writes: topics.
create or replace function postgremq.create_topic(p_topic varchar)
returns varchar
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    insert into postgremq.topics (name) values (p_topic) on conflict do nothing;
    return p_topic;
end;
$$;

-- Creates a queue of a topic. It gets the messages that are published from then on. p_max_attempts
-- 0 means no limit. An exclusive queue gets messages for p_keep_alive_sec seconds, unless they are
-- extended.
-- locks: none beyond the insert's own. writes: queue_base.
create or replace function postgremq.create_queue(
    p_queue_name varchar, p_topic_name varchar, p_max_attempts integer default 0,
    p_exclusive boolean default false, p_keep_alive_sec integer default 30)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    if p_max_attempts < 0 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('p_max_attempts is %s', p_max_attempts),
            hint = 'Pass the number of deliveries, or 0 for no limit.';
    end if;
    insert into postgremq.queue_base (
        name, topic_name, max_delivery_attempts, exclusive, keep_alive_until)
    values (
        p_queue_name, p_topic_name, p_max_attempts, p_exclusive,
        case when p_exclusive then now() + make_interval(secs => p_keep_alive_sec) end);
exception
    when unique_violation then
        if not p_exclusive then
            raise exception using
                errcode = 'unique_violation',
                message = format('A queue with name "%s" already exists', p_queue_name),
                hint = format('Choose another name, or delete it: select postgremq.delete_queue(%L);',
                              p_queue_name);
        end if;
        raise exception using
            errcode = 'raise_exception',
            message = format('An exclusive queue with name "%s" already exists', p_queue_name),
            hint = 'Choose another name, or delete that queue.';
    when foreign_key_violation then
        perform postgremq.refuse_topic(p_topic_name, 'foreign_key_violation');
end;
$$;

-- Keeps an exclusive queue alive until p_interval from now; also one that has expired. Returns
-- whether there is such a queue.
-- locks: the queue's row. writes: queue_base.
create or replace function postgremq.extend_queue_keep_alive(
    p_queue_name varchar, p_interval interval)
returns boolean
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    update postgremq.queue_base b
    set keep_alive_until = now() + p_interval
    where b.name = p_queue_name and b.exclusive;
    return found;
end;
$$;

-- Deletes the exclusive queues that are no longer alive.
-- locks: the queues' rows. writes: queue_base, and what its trigger writes.
create or replace function postgremq.delete_inactive_queues()
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.queue_base b
    where b.exclusive and (b.keep_alive_until is null or b.keep_alive_until <= now());
end;
$$;

-- Deletes a queue with the states of its messages. The messages stay.
-- locks: the queue's row. writes: queue_base, and what its trigger writes.
create or replace function postgremq.delete_queue(p_queue varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.queue_base b where b.name = p_queue;
end;
$$;

-- Deletes a topic with its queues, unless it has messages.
-- locks: messages against publishers, and the topic's row. writes: topics, queue_base.
create or replace function postgremq.delete_topic(p_topic varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    lock table postgremq.messages in share row exclusive mode;
    if exists (select from postgremq.messages m where m.topic_name = p_topic) then
        raise exception using
            errcode = 'raise_exception',
            message = format('Cannot delete topic "%s" because messages exist. '
                             'Clean up the topic first.', p_topic),
            hint = format('Delete its messages with: select postgremq.clean_up_topic(%L);', p_topic);
    end if;
    delete from postgremq.topics t where t.name = p_topic;
end;
$$;

-- Deletes the messages of a topic that is deleted. The lock keeps publishers, who may have seen the
-- topic, from adding one.
-- locks: messages against publishers. writes: messages, and what its trigger writes.
create or replace function postgremq.empty_topic()
returns trigger
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    lock table postgremq.messages in share row exclusive mode;
    delete from postgremq.messages m where m.topic_name = old.name;
    return old;
end;
$$;

create or replace trigger before_topic_delete
before delete on postgremq.topics
for each row execute function postgremq.empty_topic();

-- Deletes what a deleted queue leaves behind. Its states need no step: no session looks for the number of
-- a deleted queue, and maintenance counts the states as finished.
-- locks: none beyond the delete's own. writes: finished.
create or replace function postgremq.forget_queue()
returns trigger
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    delete from postgremq.finished f where f.queue_id = old.queue_id;
    return null;
end;
$$;

create or replace trigger after_queue_delete
after delete on postgremq.queue_base
for each row execute function postgremq.forget_queue();

-- Lists the topics by name.
create or replace function postgremq.list_topics()
returns table (topic varchar)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query select t.name from postgremq.topics t order by t.name;
end;
$$;

-- Lists the queues by name.
create or replace function postgremq.list_queues()
returns table (
    queue_name varchar, topic_name varchar, max_delivery_attempts integer, exclusive boolean,
    keep_alive_until timestamptz)
language plpgsql stable security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    return query
    select b.name, b.topic_name, b.max_delivery_attempts, b.exclusive, b.keep_alive_until
    from postgremq.queue_base b
    order by b.name;
end;
$$;
