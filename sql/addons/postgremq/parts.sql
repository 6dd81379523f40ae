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

-- Functions for both parts of the states, and for each part alone. To start a statement takes longer
-- than to run it, and twice as long over two parts. So a consumer calls those for one part while the
-- other part is empty. A message that comes into that part meanwhile is found by the next call: only
-- floors need to know every message, and they are made from both parts (floors.sql).
do $do$
declare
    v_part text;
begin
    foreach v_part in array array['', '_0', '_1'] loop
        -- The claim that a token belongs to. One row or none. Consumers skip it while the caller's
        -- transaction is open: they would wait for its next step otherwise. Stable, as otherwise it
        -- is not inlined.
        -- locks: the row. writes: nothing.
        execute format(  -- quoted: a suffix of the list above
            $sql$
            create or replace function postgremq.find_claim%1$s(
                i_queue varchar, i_message_id integer, i_token varchar)
            returns setof postgremq.state%1$s language sql stable as $body$
                select s.*
                from postgremq.state%1$s s
                where s.queue_id operator(pg_catalog.=) (
                          select q.queue_id from postgremq.queue_base q
                          where q.name operator(pg_catalog.=) i_queue)
                  and s.message_id operator(pg_catalog.=) i_message_id
                  and s.status operator(pg_catalog.=) 'processing'
                  and s.token operator(pg_catalog.=) i_token
                  and (select true from postgremq.state%1$s n
                       where n.queue_id operator(pg_catalog.=) s.queue_id
                         and n.message_id operator(pg_catalog.=) s.message_id
                         and n.step operator(pg_catalog.=) (s.step operator(pg_catalog.+) 1)
                         and n.part operator(pg_catalog.=) s.part) is null
                order by s.step desc
                limit 1
                for update of s
            $body$
            $sql$, v_part);

        -- Finishes the message of a claim; returns whether it did.
        -- locks: the claim's row. writes: state.
        execute format(  -- quoted: a suffix of the list above
            $sql$
            create or replace function postgremq.finish_claim%1$s(
                i_queue varchar, i_message_id integer, i_token varchar)
            returns boolean language plpgsql as $body$
            begin
                insert into postgremq.state%1$s (
                    published_at, vt, processed_at, queue_id, message_id, step, attempts, part, status)
                select c.published_at, c.vt, now(), c.queue_id, c.message_id, c.step + 1, c.attempts,
                       c.part, 'completed'
                from postgremq.find_claim%1$s(i_queue, i_message_id, i_token) c
                on conflict do nothing;
                return found;
            end
            $body$
            $sql$, v_part);

        -- Finishes the messages of several claims; returns their ids.
        -- locks: the claim's row. writes: state.
        execute format(  -- quoted: a suffix of the list above
            $sql$
            create or replace function postgremq.finish_claims%1$s(
                i_queue varchar, i_message_ids integer[], i_tokens varchar[])
            returns setof integer language plpgsql as $body$
            begin
                return query
                insert into postgremq.state%1$s as n (
                    published_at, vt, processed_at, queue_id, message_id, step, attempts, part, status)
                select c.published_at, c.vt, now(), c.queue_id, c.message_id, c.step + 1, c.attempts,
                       c.part, 'completed'
                from unnest(i_message_ids, i_tokens) a(message_id, token)
                cross join lateral postgremq.find_claim%1$s(i_queue, a.message_id, a.token) c
                on conflict do nothing
                returning n.message_id;
            end
            $body$
            $sql$, v_part);

        -- Whether a message after a floor that was delivered before or delayed is visible.
        -- locks: none. writes: nothing.
        execute format(  -- quoted: a suffix of the list above
            $sql$
            create or replace function postgremq.is_due%1$s(i_floor postgremq.floor, i_now bigint)
            returns boolean language plpgsql as $body$
            begin
                return exists (
                    select from postgremq.state%1$s s
                    where s.queue_id = i_floor.queue_id and s.due_at is not null
                      and s.due_at > i_floor.due_at and s.due_at <= i_now
                      and s.status in ('pending', 'processing')
                      and (select true from postgremq.state%1$s n
                           where n.queue_id = s.queue_id and n.message_id = s.message_id
                             and n.step = s.step + 1 and n.part = s.part) is null);
            end
            $body$
            $sql$, v_part);

        -- Claims new messages after the floor.
        -- locks: the rows that it claims. writes: state.
        execute format(  -- quoted: a suffix of the list above
            $sql$
            create or replace function postgremq.claim_new%1$s(
                i_floor postgremq.floor, i_vt timestamptz, i_limit bigint)
            returns postgremq.claims language plpgsql as $body$
            declare
                v_claims postgremq.claims%%rowtype;
            begin
                with picked as materialized (
                    select s.txid, s.message_id, s.step, s.part, s.attempts, s.published_at
                    from postgremq.state%1$s s
                    where s.queue_id = i_floor.queue_id and s.status = 'pending' and s.due_at is null
                      and (s.txid, s.message_id) > (i_floor.new_txid, i_floor.new_id)
                      and (select true from postgremq.state%1$s n
                           where n.queue_id = s.queue_id and n.message_id = s.message_id
                             and n.step = s.step + 1 and n.part = s.part) is null
                    order by s.txid, s.message_id
                    limit i_limit
                    for update of s skip locked
                ), claimed as (
                    insert into postgremq.state%1$s as n (
                        due_at, published_at, vt, queue_id, message_id, step, attempts, part, status,
                        token)
                    select postgremq.due(i_vt, p.attempts + 1, (
                               select b.max_delivery_attempts from postgremq.queue_base b
                               where b.queue_id = i_floor.queue_id)), p.published_at, i_vt,
                           i_floor.queue_id, p.message_id, p.step + 1, p.attempts + 1, p.part,
                           'processing', overlay(gen_random_uuid()::text placing p.part::text from 36)
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
            end
            $body$
            $sql$, v_part);
    end loop;
end;
$do$;
