-- Returns a subconsumer's open batch, or opens its next one: the batch of a dead subconsumer, or the
-- batch after the shared cursor. In one transaction, it writes its own position, then moves the
-- cursor or the dead subconsumer, then opens the batch. Each move succeeds only from the position that
-- was read, so no batch is given out twice or lost. A batch that is taken over gets a new id, so that a
-- late ack of the dead subconsumer fails. With an owner, it takes the lease under a new epoch. With a
-- batch id in i_only, it accepts only that open batch; without one, it registers a new subconsumer.
-- locks: waits for concurrent moves of the consumer or of the dead subconsumer; those of
-- register_subconsumer for a new one. writes: position_log, set_aside, nothing when there is no batch.
create or replace function pgque.open_coop_batch(
    i_queue text, i_consumer text, i_subconsumer text,
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_max_count integer,
    i_dead_interval interval, i_owner text, i_ttl interval, i_only bigint)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_name  text := pgque.subconsumer_name(i_consumer, i_subconsumer);
    v_main  pgque.subscription;
    v_sub   pgque.subscription;
    v_from  pgque.subscription;
begin
    loop
        if i_only is null then
            perform pgque.register_subconsumer(i_queue, i_consumer, i_subconsumer);
        end if;
        v_main := pgque.find_subscription(i_queue, i_consumer);
        v_sub := pgque.find_subconsumer(v_main, i_queue, v_name);
        perform pgque.check_claimed(v_sub, i_queue, v_name, i_owner, i_only);
        continue when v_sub.sub_id is null;
        if i_owner is not null then
            v_sub.lease_owner := i_owner;
            v_sub.lease_until := clock_timestamp() + i_ttl;
            v_sub.lease_epoch := v_sub.lease_epoch + 1;
        end if;
        if v_sub.sub_batch is not null then
            exit when pgque.append_position(v_sub);  -- a sign of life
            continue;
        end if;

        v_from := pgque.find_dead_subconsumer(v_main.sub_id, v_sub.sub_id, i_dead_interval);
        if v_from.sub_id is null then
            v_from := v_main;
            v_from.sub_next_tick := (pgque.find_next_tick(
                v_main.sub_queue, pgque.find_tick(v_main.sub_queue, v_main.sub_last_tick),
                i_min_lag, i_min_count, i_min_interval, i_max_count, v_main.sub_id)).tick_id;
            if v_from.sub_next_tick is null then
                return null;
            end if;
        end if;

        continue when not pgque.append_position(v_sub);
        continue when not pgque.close_batch(v_from);
        v_sub.pos_seq := v_sub.pos_seq + 1;
        v_sub.sub_batch := pgque.next_batch_id();
        v_sub.sub_last_tick := v_from.sub_last_tick;
        v_sub.sub_next_tick := v_from.sub_next_tick;
        if not pgque.append_position(v_sub) then
            raise exception 'subconsumer "%" moved while it got a batch', v_name
                using errcode = 'serialization_failure', hint = 'Roll back and try again.';
        end if;
        -- Events that were taken out of a dead subconsumer's batch stay out.
        insert into pgque.set_aside (sub_id, batch_id, epoch, ev_ids)
        select v_sub.sub_id, v_sub.sub_batch, v_sub.lease_epoch, a.ev_ids
        from pgque.set_aside a
        where a.sub_id = v_from.sub_id and a.batch_id = v_from.sub_batch
        on conflict (sub_id) do update
        set batch_id = excluded.batch_id, epoch = excluded.epoch, ev_ids = excluded.ev_ids;
        exit;
    end loop;
    return v_sub;
end;
$$;

-- The subconsumer that has been silent longest, among those with an open batch, no live lease on it,
-- and no sign of life within the interval.
create or replace function pgque.find_dead_subconsumer(
    i_main_id integer, i_own_id integer, i_dead_interval interval)
returns pgque.subscription
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return (select s
    from pgque.subscription s
    where i_dead_interval is not null
      and s.sub_main = i_main_id
      and s.sub_id <> i_own_id
      and s.sub_batch is not null
      and s.sub_active <= clock_timestamp() - i_dead_interval
      and coalesce(s.lease_until <= clock_timestamp(), true)
    order by s.sub_active
    limit 1);
end;
$$;

-- A subconsumer's next batch within the limits of the normal form; nulls when there is none. With a
-- dead interval it first takes over the batch of a subconsumer that showed no sign of life for that
-- long. A call with six arguments also fits the form with a maximum count; a typed text as the third
-- argument, or the names of the arguments, choose this form.
-- locks: those of open_coop_batch. writes: the same.
create or replace function pgque.next_batch_custom(
    i_queue text, i_consumer text, i_subconsumer text,
    i_min_lag interval, i_min_count integer, i_min_interval interval,
    i_dead_interval interval default null,
    out batch_id bigint, out prev_tick_id bigint, out next_tick_id bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_batch_limits(i_min_lag, i_min_count, i_min_interval, null);
    if i_dead_interval < '0' then
        perform pgque.refuse_value('the dead interval cannot be %s', i_dead_interval::text,
                                   'Give an interval of 0 or more, or null to take over nothing.');
    end if;
    select s.sub_batch, s.sub_last_tick, s.sub_next_tick into batch_id, prev_tick_id, next_tick_id
    from pgque.open_coop_batch(i_queue, i_consumer, i_subconsumer, i_min_lag, i_min_count,
                               i_min_interval, null, i_dead_interval, null, null, null) s;
end;
$$;

-- The same without limits.
create or replace function pgque.next_batch(
    i_queue text, i_consumer text, i_subconsumer text, i_dead_interval interval default null)
returns bigint
language plpgsql security definer
as $$
begin
    return (pgque.next_batch_custom(i_queue, i_consumer, i_subconsumer, null, null, null,
                            i_dead_interval)).batch_id;
end;
$$;

-- Records a sign of life, for a worker whose batch takes longer than the dead interval. Returns 1, or 0
-- if it is not registered.
-- locks: waits for a concurrent move of the subconsumer. writes: position_log.
create or replace function pgque.touch_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_name  text := pgque.subconsumer_name(i_consumer, i_subconsumer);
    v_main  pgque.subscription := pgque.look_for_subscription(i_queue, i_consumer);
    v_sub   pgque.subscription;
begin
    loop
        v_sub := pgque.find_subconsumer(v_main, i_queue, v_name);
        if v_sub.sub_id is null then
            return 0;
        end if;
        exit when pgque.append_position(v_sub);
    end loop;
    return 1;
end;
$$;

-- Claims a subconsumer's open or next batch under a lease, as claim_batch does for a normal consumer.
-- While the lease is live, no other subconsumer takes the batch over by its dead interval. Null when
-- there is no batch.
-- locks: those of open_coop_batch. writes: the same.
create or replace function pgque.claim_coop(
    i_queue text, i_consumer text, i_subconsumer text, i_owner text, i_ttl interval default '1 minute',
    i_min_lag interval default null, i_min_count integer default null,
    i_min_interval interval default null, i_max_count integer default null,
    i_batch_id bigint default null,
    out batch_id bigint, out epoch bigint, out lease_until timestamptz,
    out prev_tick_id bigint, out cur_tick_id bigint)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_batch_limits(i_min_lag, i_min_count, i_min_interval, i_max_count);
    perform pgque.check_lease(i_owner, i_ttl);
    select s.sub_batch, s.lease_epoch, s.lease_until, s.sub_last_tick, s.sub_next_tick
    into batch_id, epoch, lease_until, prev_tick_id, cur_tick_id
    from pgque.open_coop_batch(
        i_queue, i_consumer, i_subconsumer, i_min_lag, i_min_count, i_min_interval, i_max_count, null,
        i_owner, i_ttl, i_batch_id) s;
end;
$$;
