-- What a consumer answers with the token of its claim: ack, nack, release, or a longer visibility
-- time. Each inserts the next step of the claim. It is refused when there is one already: when the
-- claim was answered, or another consumer has the message. When maintenance has moved the claim to
-- another part meanwhile, its new row is found by the next attempt. A token is a UUID whose last digit
-- is the part in which the message was claimed: an ack looks there first. To plan a statement over
-- both parts costs more than to run it, so all use generic plans.

-- Finishes a message. Allowed after its visibility time, too, while nobody else has claimed it.
-- locks: the claim's row. writes: state.
create or replace function postgremq.ack_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar)
returns void
language plpgsql security definer
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
    if (case right(p_consumer_token, 1)
            when '0' then postgremq.finish_claim_0(p_queue_name, p_message_id, p_consumer_token)
            when '1' then postgremq.finish_claim_1(p_queue_name, p_message_id, p_consumer_token)
        end) then
        return;
    end if;
    while not postgremq.finish_claim(p_queue_name, p_message_id, p_consumer_token) loop
        if not exists (
                select from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token)) then
            raise exception using
                errcode = 'raise_exception',
                message = 'Ack failed: message not found, not in processing state, or token mismatch',
                hint = 'It was answered already, or became visible again and went to another consumer. '
                    'Otherwise check the queue, the id and the token.';
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
language plpgsql security definer
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_part  text := right(p_consumer_tokens[1], 1);
    v_rows  integer;
    v_done  integer := 0;
begin
    if v_part = '0' then
        return query select f from postgremq.finish_claims_0(
            p_queue_name, p_message_ids, p_consumer_tokens) f;
        get diagnostics v_done = row_count;
    elsif v_part = '1' then
        return query select f from postgremq.finish_claims_1(
            p_queue_name, p_message_ids, p_consumer_tokens) f;
        get diagnostics v_done = row_count;
    end if;
    while v_done < cardinality(p_message_ids) loop
        return query select f from postgremq.finish_claims(
            p_queue_name, p_message_ids, p_consumer_tokens) f;
        get diagnostics v_rows = row_count;
        v_done := v_done + v_rows;
        exit when not exists (
            select
            from unnest(p_message_ids, p_consumer_tokens) a(message_id, token)
            cross join lateral postgremq.find_claim(p_queue_name, a.message_id, a.token) c);
    end loop;
end;
$$;

-- Makes a message visible again at p_delay_until. The delivery counts as an attempt.
-- locks: the claim's row. writes: state; a notification.
create or replace function postgremq.nack_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar,
    p_delay_until timestamptz default now())
returns void
language plpgsql security definer
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_vt    timestamptz := coalesce(p_delay_until, now());
    v_txid  xid8 := pg_current_xact_id();
begin
    perform postgremq.keep_limit(p_queue_name);
    loop
        insert into postgremq.state (
            txid, due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select v_txid, postgremq.due(v_vt, c.attempts, q.max_delivery_attempts), c.published_at, v_vt,
               c.queue_id, c.message_id, c.step + 1, c.attempts, c.part, 'pending'
        from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token) c
        join postgremq.queue_base q on q.queue_id = c.queue_id
        on conflict do nothing;
        exit when found;
        if not exists (
                select from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token)) then
            raise exception using
                errcode = 'raise_exception',
                message = 'Nack failed: message not in processing state or token mismatch',
                hint = 'It was answered already, or became visible again and went to another consumer. '
                    'Otherwise check the queue, the id and the token.';
        end if;
    end loop;
    perform postgremq.tell('message_nacked', array[p_queue_name], v_vt);
end;
$$;

-- Gives a message back, visible at once. The delivery does not count as an attempt.
-- locks: the claim's row. writes: state; a notification.
create or replace function postgremq.release_message(
    p_queue_name varchar, p_message_id integer, p_consumer_token varchar)
returns void
language plpgsql security definer
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_txid  xid8 := pg_current_xact_id();
begin
    perform postgremq.keep_limit(p_queue_name);
    loop
        insert into postgremq.state (
            txid, due_at, published_at, vt, queue_id, message_id, step, attempts, part, status)
        select v_txid, postgremq.due(now(), c.attempts - 1, q.max_delivery_attempts), c.published_at,
               now(), c.queue_id, c.message_id, c.step + 1, c.attempts - 1, c.part, 'pending'
        from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token) c
        join postgremq.queue_base q on q.queue_id = c.queue_id
        on conflict do nothing;
        exit when found;
        if not exists (
                select from postgremq.find_claim(p_queue_name, p_message_id, p_consumer_token)) then
            raise exception using
                errcode = 'raise_exception',
                message = 'Release message failed: message not in processing state or token mismatch',
                hint = 'It was answered already, or became visible again and went to another consumer. '
                    'Otherwise check the queue, the id and the token.';
        end if;
    end loop;
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
language plpgsql security definer
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
language plpgsql security definer
as $$
declare
    v_vt timestamptz;
begin
    select b.vt into v_vt
    from postgremq.set_vt_batch(
        p_queue_name, array[p_message_id], array[p_consumer_token], p_vt) b;
    if not found then
        raise exception using
            errcode = 'raise_exception',
            message = 'Extend lock failed: message not in processing state or token mismatch',
            hint = 'It was answered already, or its visibility time is over. '
                    'Otherwise check the queue, the id and the token.';
    end if;
    return v_vt;
end;
$$;
