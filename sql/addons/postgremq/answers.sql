-- A consumer's answers, with the token of its claim: ack, nack, release, or a longer visibility time. Each
-- inserts the next step of the claim. It is refused if there is one already: if the claim was
-- answered, or another consumer has the message. If maintenance has moved the claim to another part
-- meanwhile, the next attempt finds its new row. Planning a statement over both parts costs more than
-- running it, so all use generic plans.

-- The claim that a token belongs to. One row or none. Consumers skip it while the caller's transaction
-- is open: they would wait for its next step otherwise. Stable, as otherwise it is not inlined.
-- locks: the row. writes: nothing.
create or replace function postgremq.find_claim(
    i_queue varchar, i_message_id integer, i_token varchar)
returns setof postgremq.state
language sql stable
as $$
    select s.*
    from postgremq.state s
    where s.queue_id = (select q.queue_id from postgremq.queue_base q where q.name = i_queue)
      and s.message_id = i_message_id and s.status = 'processing' and s.token = i_token
      and (select true from postgremq.state n
           where n.queue_id = s.queue_id and n.message_id = s.message_id and n.step = s.step + 1
             and n.part = s.part) is null
    order by s.step desc
    limit 1
    for update of s
$$;

-- Refuses an answer to a claim that is over.
create or replace function postgremq.refuse_answer(i_message text)
returns void
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'raise_exception',
        message = i_message,
        hint = 'It was answered already, or became visible again, and perhaps went to another consumer. '
            'Otherwise check the queue, the id and the token.';
end;
$$;

-- Finishes a message. Allowed after its visibility time, too, while nobody else has claimed it.
-- locks: the claim's row. writes: state.
create or replace function postgremq.ack_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
    loop
        insert into postgremq.state (
            published_at, vt, processed_at, queue_id, message_id, step, attempts, part, status)
        select c.published_at, c.vt, now(), c.queue_id, c.message_id, c.step + 1, c.attempts, c.part,
               'completed'
        from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token) c
        on conflict do nothing;
        exit when found;
        if not exists (
                select from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token)) then
            perform postgremq.refuse_answer(
                'Ack failed: message not found, not in processing state, or token mismatch');
        end if;
    end loop;
end;
$$;

-- Finishes several messages of a queue. Ids and tokens belong together by position. Returns the ids
-- of those that it finished: the others were answered, or went to another consumer. PostgreMQ has
-- no such function.
-- locks: the claim's row. writes: state.
create or replace function postgremq.ack_message_batch(
    p_queue_name varchar, p_message_ids integer[], p_consumer_tokens varchar[])
returns setof integer
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_rows  integer;
    v_done  integer := 0;
begin
    loop
        return query
        insert into postgremq.state as n (
            published_at, vt, processed_at, queue_id, message_id, step, attempts, part, status)
        select c.published_at, c.vt, now(), c.queue_id, c.message_id, c.step + 1, c.attempts, c.part,
               'completed'
        from unnest(p_message_ids, p_consumer_tokens) a(message_id, token)
        cross join lateral postgremq.find_claim(p_queue_name, a.message_id, a.token) c
        on conflict do nothing
        returning n.message_id;
        get diagnostics v_rows = row_count;
        v_done := v_done + v_rows;
        exit when v_done >= coalesce(cardinality(p_message_ids), 0);
        exit when not exists (
            select
            from unnest(p_message_ids, p_consumer_tokens) a(message_id, token)
            cross join lateral postgremq.find_claim(p_queue_name, a.message_id, a.token) c);
    end loop;
end;
$$;

-- Returns the message of a claim to the queue, visible at i_vt. Returns whether it did. i_refund is 1 if the
-- delivery does not count as an attempt, and otherwise 0.
-- locks: the claim's row. writes: state.
create or replace function postgremq.give_back(
    i_queue varchar, i_message_id integer, i_token varchar, i_vt timestamptz, i_refund integer)
returns boolean
language plpgsql set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_txid  xid8 := pg_current_xact_id();
begin
    perform postgremq.keep_limit(i_queue);
    loop
        insert into postgremq.state (
            txid, due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select v_txid, postgremq.due(i_vt, c.attempts - i_refund, q.max_delivery_attempts),
               c.published_at, i_vt, c.queue_id, c.message_id, c.step + 1, c.attempts - i_refund,
               c.part, 'pending'
        from postgremq.find_claim(i_queue, i_message_id, i_token) c
        join postgremq.queue_base q on q.queue_id = c.queue_id
        on conflict do nothing;
        exit when found;
        perform from postgremq.find_claim(i_queue, i_message_id, i_token);
        if not found then
            return false;
        end if;
    end loop;
    return true;
end;
$$;

-- Makes a message visible again at p_delay_until. The delivery counts as an attempt.
-- locks: the claim's row. writes: state; a notification.
create or replace function postgremq.nack_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar,
    p_delay_until timestamptz default now())
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_vt timestamptz := coalesce(p_delay_until, now());
begin
    if not postgremq.give_back(p_queue_name, p_message_id, p_consumer_token, v_vt, 0) then
        perform postgremq.refuse_answer(
            'Nack failed: message not in processing state or token mismatch');
    end if;
    perform postgremq.tell('message_nacked', array[p_queue_name], v_vt);
end;
$$;

-- Returns a message to the queue, visible at once. The delivery does not count as an attempt.
-- locks: the claim's row. writes: state; a notification.
create or replace function postgremq.release_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar)
returns void
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
begin
    if not postgremq.give_back(p_queue_name, p_message_id, p_consumer_token, now(), 1) then
        perform postgremq.refuse_answer(
            'Release message failed: message not in processing state or token mismatch');
    end if;
    perform postgremq.tell('message_released', array[p_queue_name], null);
end;
$$;

-- Sets the visibility time of several messages of a queue to p_vt seconds from now. Ids and tokens
-- belong together by position. Returns those that were set: the others were answered, or their
-- visibility time is over.
-- locks: the claim's row. writes: state.
create or replace function postgremq.set_vt_batch(
    p_queue_name varchar, p_message_ids integer[], p_consumer_tokens varchar[], p_vt integer)
returns table (message_id integer, vt timestamptz)
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_vt    timestamptz := now() + make_interval(secs => p_vt);
    v_txid  xid8 := pg_current_xact_id();
begin
    perform postgremq.check_claim(p_queue_name, p_vt, 1);
    loop
        return query
        insert into postgremq.state as n (
            txid, due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
        select v_txid, postgremq.due(v_vt, c.attempts, q.max_delivery_attempts), c.published_at, v_vt,
               c.queue_id, c.message_id, c.step + 1, c.attempts, c.part, 'processing', c.token
        from unnest(p_message_ids, p_consumer_tokens) a(message_id, token)
        cross join lateral postgremq.find_claim(p_queue_name, a.message_id, a.token) c
        join postgremq.queue_base q on q.queue_id = c.queue_id
        where c.vt > now()
        on conflict do nothing
        returning n.message_id, n.vt;
        exit when not exists (
            select
            from unnest(p_message_ids, p_consumer_tokens) a(message_id, token)
            cross join lateral postgremq.find_claim(p_queue_name, a.message_id, a.token) c
            where c.vt > now() and c.txid <> v_txid);
    end loop;
end;
$$;

-- The same for one message. Returns its new visibility time.
-- locks: the claim's row. writes: state.
create or replace function postgremq.set_vt(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar, p_vt integer)
returns timestamptz
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
as $$
declare
    v_vt timestamptz;
begin
    select b.vt into v_vt
    from postgremq.set_vt_batch(
        p_queue_name, array[p_message_id], array[p_consumer_token], p_vt) b;
    if not found then
        perform postgremq.refuse_answer(
            'Extend lock failed: message not in processing state or token mismatch');
    end if;
    return v_vt;
end;
$$;
