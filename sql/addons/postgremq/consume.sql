-- Claims messages of a queue, and returns them with a new token each. A message becomes visible to
-- others again after p_vt seconds, unless it is acked. A call returns at most p_limit messages: those
-- that have been visible longest, by time of publication and id. A queue that does not exist, or
-- is exclusive and no longer alive, has none.
--
-- A claim locks the row that it supersedes and skips locked rows, so consumers do not wait for each
-- other. Then it inserts the next step, unless another session did so after the statement's snapshot;
-- if so, it tries again. Rows are locked but never updated, which leaves no dead rows. Settings of
-- the planner make it use the indexes, regardless of the sizes of the tables when it planned.
-- locks: the rows that it claims. writes: state; floor, now and then.
create or replace function postgremq.consume_message(
    p_queue_name varchar, p_vt integer, p_limit integer default 1)
returns table (
    queue_name varchar, message_id integer, payload jsonb, consumer_token varchar,
    delivery_attempts integer, vt timestamptz, published_at timestamptz)
language plpgsql security definer set search_path = postgremq, pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_vt       timestamptz := now() + make_interval(secs => p_vt);
    v_now      bigint := greatest(postgremq.micros(clock_timestamp()),  -- if the clock was set back
                                  pg_sequence_last_value('postgremq.barrier'));
    v_left     bigint := coalesce(p_limit, 2147483647);
    v_queue    postgremq.queue_base%rowtype;
    v_floor    postgremq.floor%rowtype;
    v_last     record;
    v_claimed  postgremq.state[];
begin
    if p_vt is null or p_limit < 0 or current_setting('transaction_isolation') not like 'read%' then
        perform postgremq.check_claim(p_queue_name, p_vt, p_limit);
    end if;
    select b.* into v_queue
    from postgremq.queue_base b
    where b.name = p_queue_name and (not b.exclusive or b.keep_alive_until > now());
    if not found then
        return;
    end if;
    v_floor := postgremq.find_floor(v_queue.queue_id);
    loop
        with picked as materialized (
            select p.* from postgremq.pick_rows(v_floor, v_now, v_left) p
        ), claimed as (
            insert into postgremq.state as n (
                due_at, published_at, vt, queue_id, message_id, step, attempts, part, status, token)
            select postgremq.due(v_vt, p.attempts + 1, v_queue.max_delivery_attempts), p.published_at,
                   v_vt, p.queue_id, p.message_id, p.step + 1, p.attempts + 1, p.part, 'processing',
                   gen_random_uuid()::text
            from picked p
            on conflict do nothing
            returning n
        )
        select count(*) as n, max(p.due_at) as due_at,
               (array_agg(p.message_id order by p.due_at desc, p.message_id desc))[1] as id,
               array(select c.n from claimed c) as claims
        into v_last
        from picked p;
        v_claimed := v_claimed || v_last.claims;
        v_left := v_left - cardinality(v_last.claims);
        exit when v_last.n = cardinality(v_last.claims);
    end loop;
    if coalesce(cardinality(v_claimed), 0) = 0 then
        perform postgremq.catch_up(v_floor, v_now);
        return;
    elsif random() * 24 < cardinality(v_claimed) then
        perform postgremq.move_floor(
            v_floor, coalesce(v_last.due_at, v_floor.due_at), coalesce(v_last.id, v_floor.due_id));
    end if;
    return query
    select p_queue_name, m.id, m.payload, c.token::varchar, c.attempts, v_vt, c.published_at
    from unnest(v_claimed) c
    cross join lateral (
        select m.id, m.payload from postgremq.messages m where m.id = c.message_id limit 1) m
    order by c.published_at, c.message_id;
end;
$$;
