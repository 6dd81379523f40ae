-- Claims messages of a queue, and returns them with a new token each. A message becomes visible to
-- others again after p_vt seconds, unless it is acked. A call returns at most p_limit messages: first
-- those that were delivered before or were delayed, then new ones, each by time of publication and
-- id. A queue that does not exist, or is exclusive and no longer alive, has none.
--
-- A claim locks the row that it supersedes and skips locked rows, so nobody waits for another
-- consumer. Then it inserts the next step, unless somebody did so after the statement's snapshot;
-- if so, it tries again. Rows are locked but never updated, which leaves no dead rows. Settings of
-- the planner make it use the indexes, whatever the sizes of the tables were when it planned.
-- locks: the rows that it claims. writes: state; floor, now and then.
create or replace function postgremq.consume_message(
    p_queue_name varchar, p_vt integer, p_limit integer default 1)
returns table (
    queue_name varchar, message_id integer, payload jsonb, consumer_token varchar,
    delivery_attempts integer, vt timestamptz, published_at timestamptz)
language plpgsql security definer
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
    v_queue  integer;
    v_floor  postgremq.floor%rowtype;
    v_vt     timestamptz := now() + make_interval(secs => p_vt);
    v_now    bigint := date_part('epoch', clock_timestamp()) * 1000000;
    v_left   bigint := coalesce(p_limit, 2147483647);
    v_got    postgremq.claims%rowtype;
    v_all    postgremq.claims%rowtype;
begin
    if p_vt is null or p_limit < 0 or current_setting('transaction_isolation') not like 'read%' then
        perform postgremq.check_claim(p_queue_name, p_vt, p_limit);
    end if;
    select b.queue_id into v_queue
    from postgremq.queue_base b
    where b.name = p_queue_name and (not b.exclusive or b.keep_alive_until > now());
    if v_queue is null then
        return;
    end if;
    v_floor := postgremq.find_floor(v_queue);
    for v_again in 1 .. 2 loop
        loop
            v_got := null;
            if v_again = 2 then
                v_got := postgremq.claim_new(v_floor, v_vt, v_left);
            elsif postgremq.has_returned(v_floor, v_now) then
                v_got := postgremq.claim_returned(v_floor, v_now, v_vt, v_left);
            end if;
            v_left := v_left - coalesce(cardinality(v_got.ids), 0);
            v_all.ids := v_all.ids || v_got.ids;
            v_all.tokens := v_all.tokens || v_got.tokens;
            v_all.attempts := v_all.attempts || v_got.attempts;
            v_all.times := v_all.times || v_got.times;
            exit when coalesce(v_got.picked, 0) = coalesce(cardinality(v_got.ids), 0);
        end loop;
        exit when v_left = 0;
    end loop;
    if v_all.ids is null then
        perform postgremq.catch_up(v_floor, v_now);
        return;
    elsif random() * 24 < cardinality(v_all.ids) then
        perform postgremq.move_floor(
            v_floor, coalesce(v_got.last_txid, v_floor.new_txid), coalesce(v_got.last_id, v_floor.new_id));
    end if;
    return query
    select p_queue_name, m.id, m.payload, c.token::varchar, c.attempts, v_vt, c.published_at
    from unnest(v_all.ids, v_all.tokens, v_all.attempts, v_all.times)
         c(id, token, attempts, published_at)
    cross join lateral (
        select m.id, m.payload from postgremq.messages m where m.id = c.id limit 1) m
    order by c.published_at, c.id;
end;
$$;
