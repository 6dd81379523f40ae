-- Opens the events between two ticks as the consumer's batch, under a lease, for a reader that keeps
-- its own record of its progress, such as a streaming query with a checkpoint. This finishes everything
-- up to i_from_tick: the position follows the record and never goes back. If the open batch spans these
-- ticks, it keeps its id. The same tick twice gives an empty batch, which keeps the lease while nothing
-- is read. Without ticks it claims the open batch, or an empty one. Without an epoch it takes a free or
-- expired lease under a new epoch; with an epoch it renews the lease. It returns the fingerprints of
-- both ticks, and refuses a tick whose fingerprint differs from the given one.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.claim_ticks(
    i_queue text, i_consumer text, i_owner text, i_ttl interval default '1 minute',
    i_from_tick bigint default null, i_to_tick bigint default null, i_epoch bigint default null,
    i_from_fingerprint text default null, i_to_fingerprint text default null,
    out batch_id bigint, out epoch bigint, out lease_until timestamptz,
    out prev_tick_id bigint, out cur_tick_id bigint, out registration_id integer,
    out prev_fingerprint text, out cur_fingerprint text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub   pgque.subscription;
    v_from  bigint;
    v_to    bigint;
begin
    perform pgque.check_lease(i_owner, i_ttl);
    loop
        v_sub := pgque.find_subscription(i_queue, i_consumer);
        if v_sub.sub_role <> 'normal' then
            perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
        end if;
        if i_epoch is null then
            perform pgque.check_claimed(v_sub, i_queue, i_consumer, i_owner);
        elsif v_sub.sub_batch is null then
            raise exception '"%" no longer has a lease on %/% under epoch %: its batch was '
                            'finished by another owner', i_owner, i_queue, i_consumer, i_epoch
                using errcode = 'PQ012', hint = 'The lease ran out, or the consumer was registered '
                                                'again. Discard this attempt.';
        else
            perform pgque.check_lease_holder(v_sub, i_owner, i_epoch);
        end if;
        v_from := coalesce(i_from_tick, v_sub.sub_last_tick);
        v_to := coalesce(i_to_tick, case when i_from_tick is null then v_sub.sub_next_tick end, v_from);
        if v_to < v_from then
            raise exception 'tick % comes after tick %', v_from, v_to
                using errcode = 'PQ005', hint = 'Give the earlier tick first.';
        end if;
        prev_fingerprint := pgque.check_tick(v_sub, i_queue, i_consumer, v_from, i_from_fingerprint);
        cur_fingerprint := pgque.check_tick(v_sub, i_queue, i_consumer, v_to, i_to_fingerprint);

        if v_sub.sub_batch is null or (v_sub.sub_last_tick, v_sub.sub_next_tick) <> (v_from, v_to) then
            v_sub.sub_batch := pgque.next_batch_id();
            v_sub.sub_last_tick := v_from;
            v_sub.sub_next_tick := v_to;
        end if;
        v_sub.lease_owner := i_owner;
        v_sub.lease_until := clock_timestamp() + i_ttl;
        v_sub.lease_epoch := v_sub.lease_epoch + (i_epoch is null)::integer;
        exit when pgque.append_position(v_sub);
    end loop;
    batch_id := v_sub.sub_batch;
    epoch := v_sub.lease_epoch;
    lease_until := v_sub.lease_until;
    prev_tick_id := v_sub.sub_last_tick;
    cur_tick_id := v_sub.sub_next_tick;
    registration_id := v_sub.sub_id;
end;
$$;

-- A hash that distinguishes a tick from another tick of the same number, which can exist after the
-- server lost its last transactions. Null if there is no such tick.
create or replace function pgque.tick_fingerprint(i_queue text, i_tick_id bigint)
returns text
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_found  text;
begin
    select left(encode(sha256(convert_to(
               format('%s/%s/%s/%s', t.tick_id, extract(epoch from t.tick_time), t.tick_snapshot,
                      t.tick_event_seq), 'UTF8')), 'hex'), 16)
    into v_found
    from pgque.tick t
    where t.tick_queue = v_queue.queue_id and t.tick_id = i_tick_id;
    if not found then
        perform pgque.check_logs_visible();
    end if;
    return v_found;
end;
$$;

-- The last tick after a given one with at most i_max_count events in between, or the next tick if it
-- has more; null if there is none. Without i_after_tick, it starts at the consumer's position.
create or replace function pgque.next_tick(
    i_queue text, i_consumer text,
    i_after_tick bigint default null, i_max_count integer default null)
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    pgque.subscription := pgque.find_subscription(i_queue, i_consumer);
    v_after  bigint := coalesce(i_after_tick, v_sub.sub_last_tick);
begin
    if v_sub.sub_role <> 'normal' then
        perform pgque.refuse_cooperative(v_sub, i_queue, i_consumer);
    end if;
    perform pgque.check_batch_limits(null, null, null, i_max_count);
    perform pgque.check_tick(v_sub, i_queue, i_consumer, v_after, null);
    return (pgque.find_next_tick(v_sub.sub_queue, pgque.find_tick(v_sub.sub_queue, v_after),
                                 null, null, null, coalesce(i_max_count, 2147483647),
                                 case when i_max_count is not null then v_sub.sub_id end)).tick_id;
end;
$$;

-- Refuses a tick that a consumer cannot get: before its position, where events may be gone; one that
-- does not exist; and one that differs from the reader's record. Returns the tick's fingerprint.
create or replace function pgque.check_tick(
    i_sub pgque.subscription, i_queue text, i_consumer text, i_tick bigint, i_fingerprint text)
returns text
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_position  constant pgque.tick := pgque.find_tick(i_sub.sub_queue, i_sub.sub_last_tick);
    v_found     constant text := pgque.tick_fingerprint(i_queue, i_tick);
begin
    if i_tick < v_position.tick_id then
        raise exception 'consumer "%" on queue "%" has finished tick %: it does not get what '
                        'follows tick % again', i_consumer, i_queue, v_position.tick_id, i_tick
            using errcode = 'PQ023',
                  hint = 'The record of ticks (a checkpoint) is older than the consumer''s '
                         'position. Use the newest record, or begin a new one at the position.';
    elsif v_found is null then
        raise exception 'queue "%" has no tick %; its last one is %', i_queue, i_tick,
                        (pgque.find_newest_tick(i_sub.sub_queue)).tick_id
            using errcode = 'PQ023',
                  hint = 'The record of ticks (a checkpoint) comes from another database, from '
                         'before a restore, or from a server that was lost before a standby was '
                         'promoted. Begin a new one at the consumer''s position, as '
                         'docs/restore.md says.';
    elsif i_fingerprint <> v_found then
        raise exception 'tick % of queue "%" is not the one that the record (a checkpoint) of '
                        'consumer "%" names: that one was lost', i_tick, i_queue, i_consumer
            using errcode = 'PQ023',
                  hint = 'A standby was promoted, or the database restored, without the last '
                         'transactions. Remove what was stored after the consumer''s position, and '
                         'begin a new record there, as docs/restore.md says.';
    end if;
    return v_found;
end;
$$;
