-- Opens the next batch under a lease, or takes over the open batch if its lease is free or has expired.
-- The epoch is a fencing token: after a takeover the earlier owner can neither renew nor ack. With
-- i_batch_id only that open batch is claimed. Null when there is no batch.
-- locks: those of open_batch. writes: the same.
create or replace function pgque.claim_batch(
    i_queue text, i_consumer text, i_owner text, i_ttl interval default '1 minute',
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
    from pgque.open_batch(i_queue, i_consumer, i_min_lag, i_min_count, i_min_interval, i_max_count,
                          i_owner, i_ttl, i_batch_id) s;
end;
$$;

-- Opens the next batch of a consumer or of a slot, or returns the open one, for another session to
-- claim. It has no lease. The epoch is that of the last claim. Null when there is no
-- batch.
-- locks: those of open_batch. writes: the same.
create or replace function pgque.open_to_claim(
    i_queue text, i_consumer text,
    i_min_lag interval default null, i_min_count integer default null,
    i_min_interval interval default null, i_max_count integer default null,
    out batch_id bigint, out epoch bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    perform pgque.check_batch_limits(i_min_lag, i_min_count, i_min_interval, i_max_count);
    v_sub := pgque.open_batch(i_queue, i_consumer, i_min_lag, i_min_count, i_min_interval,
                              i_max_count, null, '0', null);
    batch_id := v_sub.sub_batch;
    epoch := v_sub.lease_epoch;
end;
$$;

-- Refuses an owner without a name, and a time to live that is not positive.
create or replace function pgque.check_lease(i_owner text, i_ttl interval)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if coalesce(i_owner, '') = '' or i_ttl is null
       or i_ttl not between '1 microsecond' and '1 year' then
        raise exception 'owner "%" cannot have a lease with a time to live of %',
                        coalesce(i_owner, 'null'), coalesce(i_ttl::text, 'null')
            using errcode = 'PQ005',
                  hint = 'Name the owner (a run, a worker) and give an interval of at most a year.';
    end if;
end;
$$;

-- Returns an open batch to the owner of its lease; for others, raises an error that names the owner.
create or replace function pgque.find_leased_batch(i_batch_id bigint, i_owner text, i_epoch bigint)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.find_batch(i_batch_id);
begin
    perform pgque.refuse_slot(v_sub, true);
    perform pgque.check_lease_holder(v_sub, i_owner, i_epoch);
    return v_sub;
end;
$$;

-- Refuses a caller without the newest lease on an open batch. An expired lease stays with its owner
-- until another owner takes the batch over.
create or replace function pgque.check_lease_holder(
    i_sub pgque.subscription, i_owner text, i_epoch bigint)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_sub.lease_owner is distinct from i_owner or i_sub.lease_epoch is distinct from i_epoch then
        raise exception using
            errcode = 'PQ012',
            message = format('%s is not leased by "%s" under epoch %s: %s',
                             coalesce('batch ' || i_sub.sub_batch, 'the slot'),
                             coalesce(i_owner, 'null'), coalesce(i_epoch::text, 'null'),
                             case when i_sub.lease_owner is null then 'it has no lease'
                                  else format('"%s" has its lease under epoch %s until %s',
                                              i_sub.lease_owner, i_sub.lease_epoch,
                                              i_sub.lease_until) end),
            hint = 'The lease ran out and another owner took the batch, or it was released. '
                   'Discard this attempt.';
    end if;
end;
$$;

-- Extends a lease; returns the new end.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.renew_batch(
    i_batch_id bigint, i_owner text, i_epoch bigint, i_ttl interval default '1 minute')
returns timestamptz
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    pgque.subscription;
    v_until  timestamptz := clock_timestamp() + i_ttl;
begin
    perform pgque.check_lease(i_owner, i_ttl);
    loop
        v_sub := pgque.find_leased_batch(i_batch_id, i_owner, i_epoch);
        v_sub.lease_until := v_until;
        exit when pgque.append_position(v_sub);
    end loop;
    return v_until;
end;
$$;

-- Finishes a leased batch; only the owner of the newest epoch can.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.ack_batch(i_batch_id bigint, i_owner text, i_epoch bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    -- Repeats if the same owner renewed the lease meanwhile.
    loop
        exit when pgque.close_batch(pgque.find_leased_batch(i_batch_id, i_owner, i_epoch));
    end loop;
    return 1;
end;
$$;

-- Releases the lease on a batch: the batch stays open, and any worker may claim it at once.
-- locks: waits for a concurrent move of the same consumer. writes: position_log.
create or replace function pgque.release_batch(i_batch_id bigint, i_owner text, i_epoch bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    loop
        v_sub := pgque.find_leased_batch(i_batch_id, i_owner, i_epoch);
        v_sub.lease_owner := null;
        v_sub.lease_until := null;
        exit when pgque.append_position(v_sub);
    end loop;
    return 1;
end;
$$;

-- The current or last owner of the lease on the consumer's open batch; no row if no batch is open.
create or replace function pgque.get_lease_info(
    i_queue text, i_consumer text,
    out batch_id bigint, out owner text, out lease_until timestamptz, out epoch bigint,
    out is_live boolean)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query select s.sub_batch, s.lease_owner, s.lease_until, s.lease_epoch,
          coalesce(s.lease_until > clock_timestamp(), false)
   from pgque.find_subscription(i_queue, i_consumer) s
   where s.sub_batch is not null;
end;
$$;
