-- Subscribes one of the n slots of a partitioned consumer. The first call makes all n slots at the last
-- tick, and fixes n until the last slot is unsubscribed. A slot that was unsubscribed starts again at
-- the last tick. Calling it again changes nothing.
create or replace function pgque.subscribe_slot(i_queue text, i_consumer text, i_slot integer, i_n
    integer)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.subscribe_slots_at(i_queue, i_consumer, array[i_slot], i_n, null);
end;
$$;

-- Subscribes all n slots of a partitioned consumer. If it is new, they start at a position: earliest,
-- latest, a tick's number or a time (seek.sql); null means the last tick. Returns 1, or 0 if the
-- consumer had slots before, which stay where they are.
-- locks: the consumer's row in partition_consumer; those of register_consumer. writes: those of
-- subscribe_slot.
create or replace function pgque.subscribe_slots(
    i_queue text, i_consumer text, i_n integer, i_start_at text default null)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue);
    v_tick   bigint;
    v_new    boolean;
begin
    if i_start_at is not null then
        perform pgque.check_position(i_start_at);
    end if;
    v_new := not exists (select from pgque.partition_consumer c
                         where c.queue_id = v_queue.queue_id and c.co_name = i_consumer);
    if v_new and i_start_at is not null then
        v_tick := pgque.hold_tick(v_queue.queue_id, i_start_at);
    end if;
    perform pgque.subscribe_slots_at(
        i_queue, i_consumer, array(select generate_series(0, greatest(i_n, 1) - 1)), i_n, v_tick);
    return v_new::integer;
end;
$$;

-- Subscribes slots, for the two functions above. If the consumer is new, all its slots are made at a
-- tick that the caller holds; null means the last tick.
-- locks: those of subscribe_slot. writes: the same.
create or replace function pgque.subscribe_slots_at(
    i_queue text, i_consumer text, i_slots integer[], i_n integer, i_tick bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue  pgque.queue;
    v_tick   bigint;
    v_n      integer;
    v_known  integer[];
begin
    if coalesce(i_consumer, '') = '' or strpos(i_consumer, '#') > 0
       or (i_n between 1 and 256 and 0 <= all (i_slots) and i_n > all (i_slots)) is not true then
        raise exception 'consumer "%" cannot have a slot % of %', coalesce(i_consumer, ''),
                        coalesce(i_slots[1]::text, 'null'), coalesce(i_n::text, 'null')
            using errcode = 'PQ005', hint = 'Name the consumer without #, give it 1 to 256 slots, '
                                            'and number them from 0.';
    end if;
    loop
        v_queue := pgque.find_queue(i_queue);
        perform from pgque.queue q where q.queue_id = v_queue.queue_id for key share;
        continue when not found;
        select s.sub_last_tick into v_tick
        from pgque.subscription s
        join pgque.consumer c on c.co_id = s.sub_consumer
        where s.sub_queue = v_queue.queue_id and c.co_name = i_consumer;
        if found then  -- its events would be forgotten
            raise exception 'consumer "%" on queue "%" is registered without slots', i_consumer,
                            i_queue
                using errcode = 'PQ015',
                      hint = format('Choose another name. Or let it finish its open batch and its '
                                    'retries, and let slots continue at its position, in one '
                                    'transaction: select pgque.unregister_consumer(%1$L, %2$L, '
                                    'true); select pgque.subscribe_slots(%1$L, %2$L, slots, %3$L);',
                                    i_queue, i_consumer, v_tick);
        end if;
        insert into pgque.partition_consumer (queue_id, co_name, n)
        values (v_queue.queue_id, i_consumer, i_n)
        on conflict do nothing;
        select c.n into v_n
        from pgque.partition_consumer c
        where c.queue_id = v_queue.queue_id and c.co_name = i_consumer
        for update;
        exit when found;
    end loop;
    perform pgque.check_slot_count(i_queue, i_consumer, v_n, i_n);

    v_known := array(select b.slot from pgque.partition_slot_base b
                     where b.queue_id = v_queue.queue_id and b.co_name = i_consumer);
    perform pgque.register_slots(
        i_queue, i_consumer, i_n,
        case v_known when '{}' then array(select generate_series(0, i_n - 1))
                     else array(select s from unnest(i_slots) s where s <> all (v_known)) end,
        case v_known when '{}' then i_tick end);
    update pgque.partition_slot_base b
    set is_subscribed = true
    where b.queue_id = v_queue.queue_id and b.co_name = i_consumer and b.slot = any (i_slots)
      and not b.is_subscribed;
end;
$$;

-- Checks the number of slots that a caller passes: with another number, the slot has other keys.
create or replace function pgque.check_slot_count(
    i_queue text, i_consumer text, i_registered integer, i_n integer)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_n is distinct from i_registered then
        raise exception 'consumer "%" on queue "%" has % slots, not %', i_consumer, i_queue,
                        i_registered, coalesce(i_n::text, 'null')
            using errcode = 'PQ005', hint = format('Pass %s as the number of slots; to change it, '
                                                   'call pgque.repartition(%L, %L, slots).',
                                                   i_registered, i_queue, i_consumer);
    end if;
end;
$$;

-- Makes some slots of a consumer, all at one tick; null means the last tick.
-- locks: those of register_consumer. writes: the same, and partition_slot_base.
create or replace function pgque.register_slots(
    i_queue text, i_consumer text, i_n integer, i_slots integer[], i_tick bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot  integer;
    v_name  text;
    v_tick  bigint := i_tick;
    v_sub   pgque.subscription;
begin
    foreach v_slot in array i_slots loop
        v_name := format('%s#%s/%s', i_consumer, v_slot, i_n);
        if pgque.register_consumer_at(i_queue, v_name, v_tick) = 0 then
            raise exception 'the name "%" on queue "%" belongs to another consumer', v_name, i_queue
                using errcode = 'PQ015',
                      hint = format('Slot %s of consumer "%s" needs that name: unregister the '
                                    'other consumer, or choose another name.', v_slot, i_consumer);
        end if;
        v_sub := pgque.find_subscription(i_queue, v_name);
        v_tick := v_sub.sub_last_tick;
        update pgque.subscription_base b set sub_role = 'slot' where b.sub_id = v_sub.sub_id;
        insert into pgque.partition_slot_base (sub_id, queue_id, co_name, slot)
        values (v_sub.sub_id, v_sub.sub_queue, i_consumer, v_slot);
    end loop;
end;
$$;

-- Unsubscribes a slot, and drops its unread events, retries and dead letters. With the last slot, the
-- partitioned consumer is removed. Does nothing if the slot is not subscribed.
-- locks: the consumer's row in partition_consumer. writes: partition_consumer, subscription_base (and
-- what hangs on it), retry_queue, dead_letter.
create or replace function pgque.unsubscribe_slot(i_queue text, i_consumer text, i_slot integer)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot   pgque.subscription;
    v_ended  integer[];
begin
    begin
        v_slot := pgque.find_slot(i_queue, i_consumer, i_slot);
    exception
        when sqlstate 'PQ001' or sqlstate 'PQ002' then
            if i_consumer is null or (i_slot >= 0) is not true then
                raise;
            end if;
            return;
    end;
    perform from pgque.partition_consumer c
    where c.queue_id = v_slot.sub_queue and c.co_name = i_consumer
    for update;
    select array_agg(b.sub_id) into v_ended
    from pgque.partition_slot_base b
    where b.queue_id = v_slot.sub_queue and b.co_name = i_consumer
      and (b.slot = i_slot or not exists (
          select from pgque.partition_slot_base other
          where other.queue_id = b.queue_id and other.co_name = b.co_name
            and other.is_subscribed and other.slot <> i_slot));

    delete from pgque.retry_queue r where r.ev_owner = any (v_ended);
    delete from pgque.dead_letter d
    using pgque.subscription_base s
    where s.sub_id = any (v_ended)
      and d.dl_queue_id = s.sub_queue and d.dl_consumer_id = s.sub_consumer;
    delete from pgque.subscription_base s where s.sub_id = any (v_ended);
    delete from pgque.partition_consumer c
    where c.queue_id = v_slot.sub_queue and c.co_name = i_consumer
      and not exists (select from pgque.partition_slot_base b
                      where b.queue_id = c.queue_id and b.co_name = c.co_name);
end;
$$;

-- For clients of version 0.3, which call it: later events of a key never wait for one that failed, which
-- was the policy skip. It goes with version 0.5.
create or replace function pgque.set_partition_policy(
    i_queue text, i_consumer text, i_on_failure text)
returns void
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue);
begin
    if not exists (select from pgque.partition_consumer c
                   where c.queue_id = v_queue.queue_id and c.co_name = i_consumer) then
        perform pgque.refuse_unpartitioned(i_queue, i_consumer);
    end if;
    if i_on_failure is distinct from 'skip' then
        perform pgque.refuse_value(
            'unknown policy for failed events: "%s"', i_on_failure,
            'To keep a key in order, release the slot instead of the nack: its page is delivered again.');
    end if;
end;
$$;

-- Takes a slot's lease, or renews it for the worker that has it. Returns the epoch, which grows with every
-- change of the worker; or null while another worker has a live lease, or a batch of claim_batch, whose
-- results may be stored already, is open.
-- locks: of two concurrent workers the second waits for the first. writes: position_log.
create or replace function pgque.claim_slot(
    i_queue text, i_consumer text, i_slot integer, i_worker text,
    i_ttl interval default '30 seconds')
returns bigint
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription;
begin
    perform pgque.check_lease(i_worker, i_ttl);
    loop
        v_slot := pgque.find_slot(i_queue, i_consumer, i_slot);
        if v_slot.sub_batch is not null and v_slot.lease_ttl is null then
            return null;
        end if;
        if v_slot.lease_owner is distinct from i_worker then
            if v_slot.lease_until > clock_timestamp() then
                return null;
            end if;
            v_slot.lease_owner := i_worker;
            v_slot.lease_epoch := v_slot.lease_epoch + 1;
            v_slot.page_to := null;
        end if;
        v_slot.lease_ttl := i_ttl;
        v_slot.lease_until := clock_timestamp() + i_ttl;
        exit when pgque.append_position(v_slot);
    end loop;
    return v_slot.lease_epoch;
end;
$$;

-- Releases a slot. A page that was not acked is delivered again, to the next worker. Returns false if
-- the worker does not have its lease.
-- locks: waits for a concurrent move of the same slot. writes: position_log.
create or replace function pgque.release_slot(
    i_queue text, i_consumer text, i_slot integer, i_worker text)
returns boolean
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription;
begin
    loop
        v_slot := pgque.find_slot(i_queue, i_consumer, i_slot);
        if v_slot.lease_owner is null or v_slot.lease_owner is distinct from i_worker then
            return false;
        end if;
        v_slot.lease_owner := null;
        v_slot.lease_until := null;
        v_slot.page_to := null;
        exit when pgque.append_position(v_slot);
    end loop;
    return true;
end;
$$;

-- Returns a subscribed slot with its newest position.
create or replace function pgque.find_slot(i_queue text, i_consumer text, i_slot integer)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription;
begin
    select s.* into v_slot
    from pgque.slot b
    join pgque.subscription s on s.sub_id = b.sub_id
    where b.queue_name = i_queue and b.co_name = i_consumer and b.slot = i_slot
      and b.is_subscribed;
    if not found then
        perform pgque.find_queue(i_queue);
        perform pgque.check_positions_visible();
        raise exception 'slot % of consumer "%" is not subscribed on queue "%"',
                        coalesce(i_slot::text, 'null'), coalesce(i_consumer, 'null'), i_queue
            using errcode = 'PQ002', hint = 'Subscribe it with: select pgque.subscribe_slot(queue, '
                                            'consumer, slot, n);';
    end if;
    return v_slot;
end;
$$;

-- Returns a slot whose lease the worker has. An expired lease still belongs to the worker until another
-- worker takes the slot.
create or replace function pgque.find_leased_slot(
    i_queue text, i_consumer text, i_slot integer, i_n integer, i_worker text)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_slot pgque.subscription := pgque.find_slot(i_queue, i_consumer, i_slot);
begin
    perform pgque.check_slot_count(i_queue, i_consumer, b.n, i_n)
    from pgque.slot b
    where b.sub_id = v_slot.sub_id;
    perform pgque.check_lease_holder(v_slot, coalesce(i_worker, ''), v_slot.lease_epoch);
    return v_slot;
end;
$$;
