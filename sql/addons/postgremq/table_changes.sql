-- The tables of PostgreMQ can be changed directly, by administrators. These triggers turn changes of
-- the view queue_messages into steps, and apply a new limit of delivery attempts.

-- Raises the error for a message that another session has changed since the statement began.
create or replace function postgremq.refuse_change(i_queue text, i_message_id integer)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'serialization_failure',
        message = format('message %s in queue "%s" was changed by another session at the same time',
                         i_message_id, i_queue),
        hint = 'Nothing was changed. Run the statement again.';
end;
$$;

-- Writes a row of queue_messages as the next step of its message. A completed message that is in
-- finished is changed there. The limit of attempts is read by the insert, which waits for a change of
-- the limit.
-- locks: the row that it supersedes. writes: state, finished.
create or replace function postgremq.change_state(
    i_queue_id integer, i_new postgremq.queue_messages)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_part  smallint;
begin
    perform pg_current_xact_id();
    if i_new.status = 'completed' then
        update postgremq.finished f
        set published_at = i_new.published_at, vt = i_new.vt, attempts = i_new.delivery_attempts,
            processed_at = i_new.processed_at
        where f.queue_id = i_queue_id and f.message_id = i_new.message_id;
        if found then
            return;
        end if;
    end if;
    delete from postgremq.finished f
    where f.queue_id = i_queue_id and f.message_id = i_new.message_id;
    insert into postgremq.state (
        due_at, published_at, vt, processed_at, queue_id, message_id, step, attempts, part, status,
        token)
    select case when i_new.status <> 'completed'
                then postgremq.due(i_new.vt, i_new.delivery_attempts, (
                         select b.max_delivery_attempts from postgremq.queue_base b
                         where b.queue_id = i_queue_id)) end,
           i_new.published_at, i_new.vt, i_new.processed_at, i_queue_id, i_new.message_id,
           coalesce(s.step + 1, 0), i_new.delivery_attempts, coalesce(s.part, postgremq.current_part()),
           i_new.status, i_new.consumer_token
    from (select) one
    left join lateral (
        select s.step, s.part
        from postgremq.state s
        where s.queue_id = i_queue_id and s.message_id = i_new.message_id and s.status <> 'moved'
        order by s.step desc
        limit 1
        for update of s  -- so that consumers skip it
    ) s on true
    on conflict do nothing
    returning part into v_part;
    if not found then
        perform postgremq.refuse_change(i_new.queue_name, i_new.message_id);
    elsif v_part <> postgremq.current_part() then
        perform nextval('postgremq.late');
    end if;
end;
$$;

-- The trigger of queue_messages.
-- locks: the message's row, and the row that it supersedes. writes: state, finished.
create or replace function postgremq.change_queue_message()
returns trigger
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_row    postgremq.queue_messages := case when tg_op = 'DELETE' then old else new end;
    v_queue  postgremq.queue_base;
begin
    if tg_op = 'UPDATE'
       and (old.queue_name, old.message_id) is distinct from (new.queue_name, new.message_id) then
        raise exception using
            errcode = 'feature_not_supported',
            message = 'queue_name and message_id of a row of queue_messages cannot be changed',
            hint = 'Delete the row and insert another.';
    end if;
    perform pgque.check_read_committed('a change of queue_messages');
    select b.* into v_queue from postgremq.queue_base b where b.name = v_row.queue_name;
    -- Of two sessions that insert a row, the second must see the first: parts share no unique key.
    perform from postgremq.messages m where m.id = v_row.message_id for update;
    if v_queue.queue_id is null or not found then
        raise exception using
            errcode = 'foreign_key_violation',
            message = format('there is no queue "%s", or no message %s',
                             v_row.queue_name, v_row.message_id),
            hint = 'Create the queue, or insert into messages, first.';
    elsif tg_op <> 'INSERT' and not exists (
            select from postgremq.all_states a
            where a.queue_id = v_queue.queue_id and a.message_id = old.message_id
              and (a.status, a.vt, a.attempts, a.token, a.processed_at) is not distinct from
                  (old.status, old.vt, old.delivery_attempts, old.consumer_token,
                   old.processed_at)) then
        perform postgremq.refuse_change(old.queue_name, old.message_id);
    elsif tg_op = 'DELETE' then
        perform postgremq.remove_states(v_queue.queue_id, array[old.message_id], null);
        return old;
    elsif tg_op = 'INSERT' and exists (
            select from postgremq.all_states a
            where a.queue_id = v_queue.queue_id and a.message_id = new.message_id) then
        raise exception using
            errcode = 'unique_violation',
            message = format('message %s is in queue "%s" already', new.message_id, new.queue_name),
            hint = 'Update its row.';
    end if;
    new.status := coalesce(new.status, 'pending');
    if new.status not in ('pending', 'processing', 'completed') then
        raise exception using
            errcode = 'check_violation',
            message = format('"%s" is not a status', new.status),
            hint = 'It is pending, processing or completed.';
    end if;
    new.published_at := coalesce(new.published_at, now());
    new.vt := coalesce(new.vt, now());
    new.delivery_attempts := coalesce(new.delivery_attempts, 0);
    perform postgremq.change_state(v_queue.queue_id, new);
    return new;
end;
$$;

create or replace trigger change_queue_message
instead of insert or update or delete on postgremq.queue_messages
for each row execute function postgremq.change_queue_message();

-- Refuses another name of a topic, and another topic of a queue. Messages have their topic's name, and
-- those that are deleted are removed from the queues that this topic has then.
create or replace function postgremq.refuse_move()
returns trigger
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'feature_not_supported',
        message = format('%s of a row of %s cannot be changed', tg_argv[0], tg_argv[1]),
        hint = 'Create another topic or queue.';
end;
$$;

create or replace trigger before_topic_rename
before update of name on postgremq.topics
for each row when (old.name is distinct from new.name)
execute function postgremq.refuse_move('name', 'topics');

create or replace trigger before_queue_move
before update of topic_name on postgremq.queue_base
for each row when (old.topic_name is distinct from new.topic_name)
execute function postgremq.refuse_move('topic_name', 'queues');

-- After a change of a queue's limit of attempts: writes the messages again that have had attempts
-- left before, or have some left now. The lock waits for transactions that have claimed messages by
-- the old limit. It gives up soon, because publishers and consumers of all queues wait behind it.
-- locks: state against publishers and consumers. writes: state.
create or replace function postgremq.apply_attempt_limit()
returns trigger
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
    perform pgque.check_read_committed('a change of max_delivery_attempts');
    begin
        lock table postgremq.state in share row exclusive mode;
    exception
        when lock_not_available then
            raise exception using
                errcode = 'lock_not_available',
                message = 'open transactions have claimed or published messages, so '
                    'max_delivery_attempts is not changed now',
                hint = 'Try again when the transactions of consumers and publishers have ended.';
    end;
    perform pg_current_xact_id();
    insert into postgremq.state (
        due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
    select postgremq.due(s.vt, s.attempts, new.max_delivery_attempts), s.published_at, s.vt,
           s.queue_id, s.message_id, s.step + 1, s.attempts, s.part, s.status, s.token
    from postgremq.last_state s
    where s.queue_id = new.queue_id and s.status in ('pending', 'processing') and s.attempts > 0
      and (old.max_delivery_attempts > 0 and s.attempts >= old.max_delivery_attempts)
          <> (new.max_delivery_attempts > 0 and s.attempts >= new.max_delivery_attempts);
    return null;
end;
$$;

create or replace trigger after_limit_change
after update of max_delivery_attempts on postgremq.queue_base
for each row when (old.max_delivery_attempts <> new.max_delivery_attempts)
execute function postgremq.apply_attempt_limit();
