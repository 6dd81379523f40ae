-- Returns a consumer's open batch, or opens the next one. With an owner, it takes the lease on the
-- batch, or takes it over, under a new epoch. With i_only, only the open batch with that id is
-- returned. The batch of a slot is only read under a lease, so a slot without a time to live is
-- refused.
-- locks: none; of two concurrent sessions the second waits for the first, then sees its batch.
-- writes: position_log, nothing when there is no batch.
create or replace function pgque.open_batch(
    i_queue text, i_consumer text,
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_max_count integer,
    i_owner text, i_ttl interval, i_only bigint)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub  pgque.subscription;
begin
    loop
        v_sub := pgque.find_subscription(i_queue, i_consumer);
        if v_sub.sub_role <> 'normal' and (v_sub.sub_role <> 'slot' or i_ttl is null) then
            perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
        end if;
        if v_sub.lease_until is not null or i_only is not null then
            perform pgque.check_claimed(v_sub, i_queue, i_consumer, i_owner, i_only);
        end if;

        v_sub.lease_ttl := null;  -- a slot is no longer read in pages
        v_sub.page_to := null;
        if v_sub.sub_batch is null then
            if v_sub.sub_next_tick is null then
                v_sub.sub_next_tick := (pgque.find_next_tick(
                    v_sub.sub_queue, pgque.find_tick(v_sub.sub_queue, v_sub.sub_last_tick),
                    i_min_lag, i_min_count, i_min_interval, i_max_count, v_sub.sub_id)).tick_id;
            end if;
            if v_sub.sub_role = 'slot' then
                v_sub.sub_next_tick := pgque.limit_to_change(
                    v_sub.sub_id, v_sub.sub_last_tick, v_sub.sub_next_tick);
            end if;
            if v_sub.sub_next_tick is null then
                return null;
            end if;
            v_sub.sub_batch := pgque.next_batch_id();
        elsif i_owner is null then
            return v_sub;
        end if;

        v_sub.lease_owner := i_owner;
        v_sub.lease_until := case when i_owner is not null then clock_timestamp() + i_ttl end;
        v_sub.lease_epoch := v_sub.lease_epoch + (i_owner is not null)::integer;
        exit when pgque.append_position(v_sub);
    end loop;
    return v_sub;
end;
$$;

-- Refuses the call if the open batch is under another owner's live lease, or is not i_only.
create or replace function pgque.check_claimed(
    i_sub pgque.subscription, i_queue text, i_consumer text, i_owner text,
    i_only bigint default null)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_sub.sub_batch is distinct from coalesce(i_only, i_sub.sub_batch) then
        raise exception 'batch % of %/% is not open', i_only, i_queue, i_consumer
            using errcode = 'PQ003',
                  hint = 'It was finished already, or never was this consumer''s.';
    elsif (i_sub.sub_batch is not null or i_sub.sub_role = 'slot')
       and i_sub.lease_until > clock_timestamp()
       and i_sub.lease_owner is distinct from i_owner then
        raise exception '% of %/% is leased by "%" until %',
                        coalesce('batch ' || i_sub.sub_batch, 'the slot'), i_queue, i_consumer,
                        i_sub.lease_owner, i_sub.lease_until
            using errcode = 'PQ004',
                  hint = 'Its owner finishes it with ack_batch; others wait until the lease ends.';
    end if;
end;
$$;

-- Writes a subscription's next position: i_sub, under the number after its pos_seq, to the half in
-- next_half. Without a batch it has no lease and no page, unless it is a slot that is handed out in
-- pages (lease_ttl). Returns false if another session took that number first; the caller then reads the
-- position again. In a stricter isolation level than READ COMMITTED that is a serialization failure, as
-- is a switch of the halves after the transaction's snapshot, which takes the number in both halves.
-- locks: waits for a concurrent move of the same consumer to commit. writes: position_log.
create or replace function pgque.append_position(i_sub pgque.subscription)
returns boolean
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_row pgque.position_log;
begin
    v_row.sub_id := i_sub.sub_id;
    v_row.pos_seq := i_sub.pos_seq + 1;
    v_row.sub_last_tick := i_sub.sub_last_tick;
    v_row.sub_active := clock_timestamp();
    v_row.sub_batch := i_sub.sub_batch;
    v_row.sub_next_tick := i_sub.sub_next_tick;
    v_row.lease_epoch := i_sub.lease_epoch;
    v_row.lease_ttl := i_sub.lease_ttl;
    v_row.next_half := i_sub.next_half;
    if i_sub.sub_batch is not null or i_sub.lease_ttl is not null then
        v_row.lease_owner := i_sub.lease_owner;
        v_row.lease_until := i_sub.lease_until;
        v_row.page_from := i_sub.page_from;
        v_row.page_to := i_sub.page_to;
    end if;
    if v_row.next_half = 0 then
        insert into pgque.position_log_0 values (v_row.*) on conflict (sub_id, pos_seq) do nothing;
    else
        insert into pgque.position_log_1 values (v_row.*) on conflict (sub_id, pos_seq) do nothing;
    end if;
    return found;
end;
$$;

-- Returns a tick that must exist. Compaction keeps every tick that a consumer needs, so only a
-- transaction whose snapshot is older than a compaction can miss one. It gets a serialization failure.
create or replace function pgque.find_tick(i_queue_id integer, i_tick_id bigint)
returns pgque.tick
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_tick pgque.tick;
begin
    select t.* into v_tick
    from pgque.tick_log t
    where t.tick_queue = i_queue_id and t.tick_id = i_tick_id
    limit 1;
    if not found then
        raise exception 'tick % is not in this transaction''s snapshot',
                        coalesce(i_tick_id::text, 'of any number')
            using errcode = 'serialization_failure',
                  hint = 'The transaction began before ticks were compacted: roll back and try '
                         'again.';
    end if;
    return v_tick;
end;
$$;

-- Opens the next batch, or returns the open one, with its ticks. The batch ends at the nearest tick
-- that is older than i_min_lag and comes i_min_count events or i_min_interval after the consumer's
-- position. With i_max_count, it ends at the last tick that stays within that many events, and
-- i_min_interval only has to have passed by now. A null argument sets no limit.
-- locks: those of open_batch. writes: the same.
create or replace function pgque.next_batch_custom(
    i_queue_name text, i_consumer_name text,
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_max_count integer,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_batch_limits(i_min_lag, i_min_count, i_min_interval, i_max_count);
    select s.sub_batch, cur.tick_id, prev.tick_id, cur.tick_time, prev.tick_time,
           cur.tick_event_seq, prev.tick_event_seq
    into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time,
         cur_tick_event_seq, prev_tick_event_seq
    from (select o.*
          from pgque.open_batch(i_queue_name, i_consumer_name, i_min_lag, i_min_count, i_min_interval,
                                i_max_count, null, null, null) o
          where o.sub_batch is not null offset 0) s
    cross join pgque.find_tick(s.sub_queue, s.sub_next_tick) cur
    cross join pgque.find_tick(s.sub_queue, s.sub_last_tick) prev;
end;
$$;

-- PgQ's form, without a maximum count.
create or replace function pgque.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_min_lag interval, i_min_count integer,
    i_min_interval interval,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    select * into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time,
        cur_tick_event_seq, prev_tick_event_seq
    from pgque.next_batch_custom(i_queue_name, i_consumer_name, i_min_lag, i_min_count,
        i_min_interval, null);
end;
$$;

-- Opens the next batch, or returns the open one; null if there is none. Every poll calls this function,
-- so the common case is short: one statement, and one more for a new batch. Both only use the first
-- halves of the logs (log_halves.sql), so polls do not wait for maintenance of the second halves. All
-- other cases go to open_batch. It has no SET clause, which would cost a tenth of an empty poll, and
-- qualifies every name and operator.
-- locks: those of open_batch. writes: the same.
create or replace function pgque.next_batch(i_queue_name text, i_consumer_name text)
returns bigint
language plpgsql security definer as $$
declare
    v_sub    pg_catalog.int4;
    v_seq    pg_catalog.int8;
    v_last   pg_catalog.int8;
    v_epoch  pg_catalog.int8;
    v_free   pg_catalog.bool;
    v_batch  pg_catalog.int8;
    v_next   pg_catalog.int8;
    v_half   pg_catalog.int2;
begin
    select s.sub_id, p.pos_seq, p.sub_last_tick, p.lease_epoch,
           p.next_half operator(pg_catalog.=) 0 and p.lease_until is null, p.sub_batch, t.tick_id,
           case when t.tick_id is null
                then (select l.half from pgque.log l
                      where l.log_name operator(pg_catalog.=) 'tick') end
    into v_sub, v_seq, v_last, v_epoch, v_free, v_batch, v_next, v_half
    from pgque.queue q
    join pgque.subscription_base s on s.sub_queue operator(pg_catalog.=) q.queue_id
    join pgque.consumer c on c.co_id operator(pg_catalog.=) s.sub_consumer
    cross join lateral (
        select *
        from pgque.position_log_0 l
        where l.sub_id operator(pg_catalog.=) s.sub_id
        order by l.pos_seq desc
        limit 1) p
    left join lateral (
        select l.tick_id from pgque.tick_log_0 l
        where l.tick_queue operator(pg_catalog.=) s.sub_queue
          and l.tick_id operator(pg_catalog.>) p.sub_last_tick
        order by l.tick_id
        limit 1) t on true
    where q.queue_name operator(pg_catalog.=) i_queue_name
      and c.co_name operator(pg_catalog.=) i_consumer_name
      and s.sub_role operator(pg_catalog.=) 'normal';
    if v_free and pg_catalog.current_setting('transaction_isolation')
                  operator(pg_catalog.=) 'read committed' then
        if v_batch is not null or v_half operator(pg_catalog.=) 0 then
            return v_batch;
        elsif v_next is not null then
            insert into pgque.position_log_0 (
                sub_id, pos_seq, sub_last_tick, sub_active, sub_batch, sub_next_tick, lease_epoch)
            values (
                v_sub, v_seq operator(pg_catalog.+) 1, v_last, pg_catalog.clock_timestamp(),
                pgque.next_batch_id(), v_next, v_epoch)
            on conflict (sub_id, pos_seq) do nothing
            returning sub_batch into v_batch;
            if found then
                return v_batch;
            end if;
        end if;
    end if;
    return (pgque.open_batch(i_queue_name, i_consumer_name, null, null, null, null,
                             null, null, null)).sub_batch;
end;
$$;

-- Refuses limits that no batch can meet.
create or replace function pgque.check_batch_limits(
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_max_count integer)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_min_lag < '0' or i_min_interval < '0' or i_min_count < 0 or i_max_count < 1
       or i_max_count < i_min_count then
        raise exception 'a batch cannot have min_lag %, min_count %, min_interval %, max_count %',
                        coalesce(i_min_lag::text, 'null'), coalesce(i_min_count::text, 'null'),
                        coalesce(i_min_interval::text, 'null'), coalesce(i_max_count::text, 'null')
            using errcode = 'PQ005',
                  hint = 'Minimums are 0 or more, the maximum 1 or more and not below the minimum.';
    end if;
end;
$$;
