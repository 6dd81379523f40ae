-- What one statement has claimed, in arrays of equal length, and how many rows it had picked for
-- that. Fewer claims than picks mean that others were faster.
do $$
begin
    if to_regtype('postgremq.claims') is null then
        create type postgremq.claims as (
            picked bigint, last_txid xid8, last_id integer,
            ids integer[], tokens text[], attempts integer[], times timestamptz[]);
    end if;
end;
$$;

-- Keeps the limit of attempts of a queue, for a transaction that may have an older snapshot: it would
-- put a message out of reach, or deliver it too often. Fails if the limit has changed since.
-- locks: the queue's row, in transactions stricter than READ COMMITTED only. writes: nothing.
create or replace function postgremq.keep_limit(i_queue varchar)
returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform from postgremq.queue_base b where b.name = i_queue for share;
    end if;
end;
$$;

-- Refuses the numbers of a claim that mean nothing, and keeps the limit of attempts.
-- locks: those of keep_limit. writes: nothing.
create or replace function postgremq.check_claim(i_queue varchar, i_vt integer, i_limit integer)
returns void
language plpgsql
as $$
begin
    if i_vt is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'p_vt is null',
            hint = 'Pass for how many seconds the messages stay invisible to others.';
    elsif i_limit < 0 then
        raise exception using
            errcode = 'invalid_row_count_in_limit_clause',
            message = format('p_limit is %s', i_limit),
            hint = 'Pass how many messages to claim at most.';
    end if;
    perform postgremq.keep_limit(i_queue);
end;
$$;

-- The rows of a queue that are visible, but not as new messages after the floor: messages that were
-- delivered before or delayed, and what the floor lists. The first are at most i_limit and 256 more,
-- by the time when they became visible. i_now is the time of the clock: due_at may be later than now().
create or replace function postgremq.returned_rows(
    i_floor postgremq.floor, i_now bigint, i_limit bigint)
returns setof postgremq.state
language plpgsql
as $$
begin
    return query
    select s.*
    from postgremq.open_state s
    where s.queue_id = i_floor.queue_id and s.due_at is not null
      and s.due_at > i_floor.due_at
      and s.due_at <= i_now and s.vt <= now()
    order by s.due_at, s.message_id
    limit i_limit + 256;
    return query select * from postgremq.listed_rows(i_floor, now(), i_limit + 256);
end;
$$;

-- Whether returned_rows may have a row for a consumer.
create or replace function postgremq.has_returned(i_floor postgremq.floor, i_now bigint)
returns boolean
language plpgsql
as $$
begin
    if cardinality(i_floor.open_ids) > 0 or cardinality(i_floor.due_ids) > 0 then
        return true;
    elsif exists (
            select from postgremq.state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null
              and s.due_at > i_floor.due_at and s.due_at <= i_now
              and s.status in ('pending', 'processing')
              and (select true from postgremq.state n
                   where n.queue_id = s.queue_id and n.message_id = s.message_id
                     and n.step = s.step + 1 and n.part = s.part) is null) then
        return true;
    elsif cardinality(i_floor.late) = 0 then
        return false;
    end if;
    return exists (
        select from postgremq.ended_since(i_floor) late(txid)
        cross join lateral (
            select from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
              and s.txid = late.txid
            limit 1) s
        union all
        select from postgremq.ended_since(i_floor) late(txid)
        cross join lateral (
            select from postgremq.open_state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null and s.txid = late.txid
              and s.due_at <= i_floor.due_at
            limit 1) s);
end;
$$;

-- For a consumer that found nothing: writes a floor behind all rows of the queue if the consumer has
-- stepped over more than 64 of them, so that the next one does not. An empty queue is only read.
-- locks: those of move_floor. writes: the same.
create or replace function postgremq.catch_up(i_floor postgremq.floor, i_now bigint)
returns void
language plpgsql
as $$
declare
    v_last postgremq.state%rowtype;
begin
    if exists (
            select from postgremq.state s
            where s.queue_id = i_floor.queue_id and s.due_at is not null
              and s.due_at > i_floor.due_at and s.due_at <= i_now
            offset 64)
       or exists (
            select from postgremq.state s
            where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
              and (s.txid, s.message_id) > (i_floor.new_txid, i_floor.new_id)
            offset 64) then
        select s.* into v_last
        from postgremq.state s
        where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
        order by s.txid desc, s.message_id desc
        limit 1;
        perform postgremq.move_floor(i_floor, coalesce(v_last.txid, i_floor.new_txid),
                                     coalesce(v_last.message_id, i_floor.new_id));
    end if;
end;
$$;

-- Claims messages of returned_rows. If others hold all that it looked at, it looks at more.
-- locks: the rows that it claims. writes: state.
create or replace function postgremq.claim_returned(
    i_floor postgremq.floor, i_now bigint, i_vt timestamptz, i_limit bigint)
returns postgremq.claims
language plpgsql
as $$
declare
    v_claims  postgremq.claims%rowtype;
    v_extra   bigint := 0;
    v_seen    bigint;
begin
    loop
        with candidate as materialized (
            select distinct r.published_at, r.queue_id, r.message_id, r.step, r.part
            from postgremq.returned_rows(i_floor, i_now, i_limit + v_extra) r
        ), picked as materialized (
            select s.message_id, s.step, s.part, s.attempts, s.published_at
            from candidate c
            join postgremq.state s
              on s.queue_id = c.queue_id and s.message_id = c.message_id and s.step = c.step
                 and s.part = c.part
            order by c.published_at, c.message_id
            limit i_limit
            for update of s skip locked
        ), claimed as (
            insert into postgremq.state as n (
                due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
            select postgremq.due(i_vt, p.attempts + 1, (
                       select b.max_delivery_attempts from postgremq.queue_base b
                       where b.queue_id = i_floor.queue_id)), p.published_at, i_vt, i_floor.queue_id,
                   p.message_id, p.step + 1, p.attempts + 1, p.part, 'processing',
                   gen_random_uuid()::text
            from picked p
            on conflict do nothing
            returning n.message_id, n.token, n.attempts, n.published_at
        )
        select (select count(*) from picked), array_agg(c.message_id), array_agg(c.token),
               array_agg(c.attempts), array_agg(c.published_at), (select count(*) from candidate)
        into v_claims.picked, v_claims.ids, v_claims.tokens, v_claims.attempts, v_claims.times, v_seen
        from claimed c;
        exit when v_claims.picked > 0 or v_seen < i_limit + v_extra + 256 or i_limit = 0;
        v_extra := v_extra * 4 + 1024;
    end loop;
    return v_claims;
end;
$$;

-- Claims new messages after the floor.
-- locks: the rows that it claims. writes: state.
create or replace function postgremq.claim_new(
    i_floor postgremq.floor, i_vt timestamptz, i_limit bigint)
returns postgremq.claims
language plpgsql
as $$
declare
    v_claims postgremq.claims%rowtype;
begin
    with picked as materialized (
        select s.txid, s.message_id, s.step, s.part, s.attempts, s.published_at
        from postgremq.state s
        where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
          and (s.txid, s.message_id) > (i_floor.new_txid, i_floor.new_id)
          and (select true from postgremq.state n
               where n.queue_id = s.queue_id and n.message_id = s.message_id
                 and n.step = s.step + 1 and n.part = s.part) is null
        order by s.txid, s.message_id
        limit i_limit
        for update of s skip locked
    ), claimed as (
        insert into postgremq.state as n (
            due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
        select postgremq.due(i_vt, p.attempts + 1, (
                   select b.max_delivery_attempts from postgremq.queue_base b
                   where b.queue_id = i_floor.queue_id)), p.published_at, i_vt, i_floor.queue_id,
               p.message_id, p.step + 1, p.attempts + 1, p.part, 'processing',
               gen_random_uuid()::text
        from picked p
        on conflict do nothing
        returning n.message_id, n.token, n.attempts, n.published_at
    ), last as (
        select p.txid, p.message_id from picked p
        order by p.txid desc, p.message_id desc
        limit 1
    )
    select (select count(*) from picked), (select l.txid from last l),
           (select l.message_id from last l), array_agg(c.message_id),
           array_agg(c.token), array_agg(c.attempts), array_agg(c.published_at)
    into v_claims
    from claimed c;
    return v_claims;
end;
$$;
