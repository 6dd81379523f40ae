-- Tells listeners about an event in queues. A notification has less than 8000 bytes, so a long list
-- of queues is split into several. It uses expressions, because PERFORM would start the executor.
-- locks: none. writes: a notification.
create or replace function postgremq.tell(i_event text, i_queues text[], i_vt timestamptz)
returns void
language plpgsql
as $$
declare
    v_text   pg_catalog.text;
    v_queue  pg_catalog.text;
begin
    if i_event operator(pg_catalog.=) 'message_released' then
        v_text := pg_catalog.json_build_object('event', i_event, 'queues', i_queues)::pg_catalog.text;
    else
        v_text := pg_catalog.json_build_object(
            'event', i_event, 'queues', i_queues, 'vt', i_vt)::pg_catalog.text;
    end if;
    if pg_catalog.octet_length(v_text) operator(pg_catalog.<) 8000 then
        v_text := pg_catalog.pg_notify('postgremq_events', v_text)::pg_catalog.text;
        return;
    end if;
    foreach v_queue in array i_queues loop
        perform postgremq.tell(i_event, array[v_queue], i_vt);
    end loop;
end;
$$;

-- Puts a new message into the queues of its topic, and tells listeners. An exclusive queue gets it
-- only while it is alive. If the topic is logged, the message is an event of that queue, too. It
-- inserts into a part directly, because routing a row through the partitioned table takes longer.
-- locks: none beyond the insert's own. writes: state, an event table; a notification.
create or replace function postgremq.distribute_message()
returns trigger
language plpgsql security definer
as $$
declare
    v_ids     pg_catalog.int4[];
    v_queues  pg_catalog.text[];
    v_vt      pg_catalog.timestamptz := coalesce(new.deliver_after, pg_catalog.now());
    v_due     pg_catalog.int8 := postgremq.due(v_vt, 0, 0);
    v_part    pg_catalog.int2 := postgremq.current_part();
    v_text    pg_catalog.text;
begin
    select pg_catalog.array_agg(b.queue_id), pg_catalog.array_agg(b.name),
           (select l.queue_name from postgremq.topic_log l
            where l.topic_name operator(pg_catalog.=) new.topic_name)
    into v_ids, v_queues, v_text
    from postgremq.queue_base b
    where b.topic_name operator(pg_catalog.=) new.topic_name
      and (not b.exclusive or b.keep_alive_until operator(pg_catalog.>) pg_catalog.now());
    if v_text is not null then
        perform pgque.insert_event(
            v_text, 'message', new.payload::pg_catalog.text, new.id::pg_catalog.text,
            case when v_vt operator(pg_catalog.>) pg_catalog.now()  -- as JSON: independent of DateStyle
                 then pg_catalog.to_json(v_vt) operator(pg_catalog.#>>) '{}' end, null, null);
        -- After the insert, which keeps the queue from being dropped and created by hand.
        if not exists (select from pgque.queue q
                       where q.queue_name operator(pg_catalog.=) v_text
                         and q.queue_addon operator(pg_catalog.=) 'postgremq') then
            perform pgque.create_log('postgremq', new.topic_name);  -- raises the error
        end if;
    end if;
    if v_ids is null then
        if not exists (select from postgremq.topics t
                       where t.name operator(pg_catalog.=) new.topic_name) then
            perform postgremq.refuse_topic(new.topic_name, 'foreign_key_violation');
        end if;
    elsif v_part operator(pg_catalog.=) 0 then
        insert into postgremq.state_0 (
            due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select v_due, new.published_at, v_vt, pg_catalog.unnest(v_ids), new.id, 0, 0, 0, 'pending';
    else
        insert into postgremq.state_1 (
            due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select v_due, new.published_at, v_vt, pg_catalog.unnest(v_ids), new.id, 0, 0, 1, 'pending';
    end if;
    if v_part operator(pg_catalog.<>) postgremq.current_part() then
        perform pg_catalog.nextval('postgremq.late');
    end if;
    v_text := postgremq.tell('message_published', v_queues, v_vt)::pg_catalog.text;
    return null;
end;
$$;

-- Raises the error for a topic that does not exist. A message without a topic is in no queue.
create or replace function postgremq.refuse_topic(i_topic text, i_errcode text)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    if i_topic is not null or i_errcode = 'raise_exception' then
        raise exception using
            errcode = i_errcode,
            message = format('Topic "%s" does not exist', i_topic),
            hint = format('Create it with: select postgremq.create_topic(%L);', i_topic);
    end if;
end;
$$;

create or replace trigger after_message_insert
after insert on postgremq.messages
for each row execute function postgremq.distribute_message();

-- Publishes a message to a topic; returns its id. It is delivered at p_deliver_after at the
-- earliest; null means at once.
-- locks: none beyond the insert's own. writes: messages, state; a notification.
create or replace function postgremq.publish_message(
    p_topic varchar, p_payload jsonb, p_deliver_after timestamptz default now())
returns integer
language plpgsql security definer
as $$
declare
    v_id pg_catalog.int4;
begin
    insert into postgremq.messages as m (topic_name, payload, deliver_after)
    select t.name, p_payload, coalesce(p_deliver_after, pg_catalog.now())
    from postgremq.topics t
    where t.name operator(pg_catalog.=) p_topic
    returning m.id into v_id;
    if not found then
        perform postgremq.refuse_topic(p_topic, 'raise_exception');
    end if;
    return v_id;
end;
$$;
