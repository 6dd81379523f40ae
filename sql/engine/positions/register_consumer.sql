-- Registers a consumer at a tick: it gets every event that this tick's snapshot did not see. Null means
-- the last tick. Returns 1, or 0 if the consumer was already registered; then a given tick moves it
-- there and cancels its open batch, unless that is leased, and the tables that it replicates are copied
-- again.
-- locks: tick, against compaction, and the queue's row, against rotation, until commit; waits for a
-- concurrent move of the consumer. writes: consumer, subscription_base, position_log, counter_log,
-- rotation_floor, replica_table.
create or replace function pgque.register_consumer_at(
    x_queue_name text, x_consumer_name text, x_tick_pos bigint)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_new   integer := pgque.register_consumer(x_queue_name, x_consumer_name,
                                               coalesce(x_tick_pos::text, 'latest'));
    v_sub   pgque.subscription;
    v_from  bigint;
begin
    if v_new = 1 or x_tick_pos is null then
        return v_new;
    end if;
    perform pgque.hold_tick((pgque.find_queue(x_queue_name)).queue_id, x_tick_pos::text);
    loop
        v_sub := pgque.find_subscription(x_queue_name, x_consumer_name);
        if v_sub.sub_role in ('coop_member', 'slot') then
            perform pgque.refuse_cooperative(v_sub, x_queue_name, x_consumer_name);
        end if;
        perform pgque.check_claimed(v_sub, x_queue_name, x_consumer_name, null);
        v_from := v_sub.sub_last_tick;
        v_sub.sub_last_tick := x_tick_pos;
        v_sub.sub_batch := null;
        v_sub.sub_next_tick := null;
        exit when pgque.append_position(v_sub);
    end loop;
    perform pgque.count_move(v_sub.sub_queue, v_sub.sub_id, v_from, x_tick_pos);
    delete from pgque.replica_table r where r.sub_id = v_sub.sub_id;
    return 0;
end;
$$;

-- Writes a new subscription's first position.
-- locks: none. writes: position_log.
create or replace function pgque.begin_positions(i_sub_id integer, i_tick bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    v_sub.sub_id := i_sub_id;
    v_sub.pos_seq := 0;
    v_sub.sub_last_tick := i_tick;
    v_sub.lease_epoch := 0;
    v_sub.next_half := (select l.half from pgque.log l where l.log_name = 'position');
    perform pgque.append_position(v_sub);
end;
$$;

-- Registers a consumer at the last tick: it gets the events that are not in a tick yet, and all later
-- ones.
create or replace function pgque.register_consumer(x_queue_name text, x_consumer_id text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.register_consumer_at(x_queue_name, x_consumer_id, null);
end;
$$;

-- Registers a consumer at a position: earliest, latest, a tick's number or a time (seek.sql). A
-- registered consumer stays where it is. Returns 1, or 0 if it was already registered.
-- locks: those of register_consumer_at. writes: the same.
create or replace function pgque.register_consumer(
    x_queue_name text, x_consumer_id text, i_start_at text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_queue   pgque.queue := pgque.find_queue(x_queue_name);
    v_tick    bigint;
    v_sub_id  integer;
begin
    if coalesce(x_consumer_id, '') = '' then
        perform pgque.refuse_value('the consumer name is null or empty', null,
                                   'Pass a name, one for each independent reader of the queue.');
    end if;
    perform pgque.check_position(i_start_at);
    if exists (select
               from pgque.subscription_base s
               join pgque.consumer c on c.co_id = s.sub_consumer
               where s.sub_queue = v_queue.queue_id and c.co_name = x_consumer_id) then
        return 0;
    end if;
    v_tick := pgque.hold_tick(v_queue.queue_id, i_start_at);
    if exists (select from pgque.partition_consumer c
               where c.queue_id = v_queue.queue_id and c.co_name = x_consumer_id) then
        raise exception 'consumer "%" is partitioned: it has slots', x_consumer_id
            using errcode = 'PQ015',
                  hint = 'Consume by its slots. To have it without slots, end each of them with '
                         'pgque.unsubscribe_slot(queue, consumer, slot), which drops their events.';
    end if;
    insert into pgque.consumer (co_name) values (x_consumer_id) on conflict do nothing;
    insert into pgque.subscription_base (sub_queue, sub_consumer)
    select v_queue.queue_id, c.co_id from pgque.consumer c where c.co_name = x_consumer_id
    on conflict do nothing
    returning sub_id into v_sub_id;
    if v_sub_id is null then
        return 0;
    end if;
    perform pgque.begin_positions(v_sub_id, v_tick);
    perform pgque.count_move(v_queue.queue_id, v_sub_id, null, v_tick);
    return 1;
end;
$$;

-- Counts what unregister_consumer would discard: unfinished events, waiting retries and dead letters;
-- and returns the owner of a live lease on its batch. A subconsumer loses nothing.
create or replace function pgque.registration_losses(
    i_queue_name text, i_consumer_name text,
    out unread bigint, out retries bigint, out dead_letters bigint, out worker text)
returns record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub    constant pgque.subscription :=
                 pgque.find_subscription(i_queue_name, i_consumer_name);
    v_floor  pg_snapshot;
begin
    if v_sub.sub_role in ('coop_member', 'slot') then
        return;
    end if;
    v_floor := (pgque.find_tick(v_sub.sub_queue, v_sub.sub_last_tick)).tick_snapshot;
    execute format('select count(*) from pgque.event_%s where ev_txid >= $1 '  -- quoted: a number's
                   'and not pg_visible_in_snapshot(ev_txid, $2) and coalesce(ev_owner, $3) = $3',
                   v_sub.sub_queue)
    into unread using pg_snapshot_xmin(v_floor), v_floor, v_sub.sub_id;
    retries := (select count(*) from pgque.retry_queue r where r.ev_owner = v_sub.sub_id);
    dead_letters := (select count(*) from pgque.dead_letter d
                     where d.dl_queue_id = v_sub.sub_queue
                       and d.dl_consumer_id = v_sub.sub_consumer);
    worker := case when v_sub.lease_until > clock_timestamp() then v_sub.lease_owner end;
end;
$$;

-- Unregisters a consumer and deletes its waiting retries. Its open batch ends. Its dead letters are
-- deleted too, unless x_keep_dead_letters is true: then they can be inspected and purged, and replayed
-- once a consumer of that name is registered again. Returns 1, or 0 if the consumer was not registered.
-- Refuses a consumer with subconsumers.
-- locks: the registration's row; waits for a concurrent move of the consumer. writes:
-- subscription_base, retry_queue, dead_letter, and what count_end writes.
create or replace function pgque.unregister_consumer(
    x_queue_name text, x_consumer_name text, x_keep_dead_letters boolean)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription := pgque.look_for_subscription(x_queue_name, x_consumer_name);
begin
    if v_sub.sub_role = 'slot' then
        perform pgque.refuse_cooperative(v_sub, x_queue_name, x_consumer_name);
    end if;
    if v_sub.sub_role = 'coop_member' then
        perform pgque.end_subconsumer(v_sub.sub_main, v_sub.sub_id, 0);
        return 1;
    end if;
    perform from pgque.subscription_base s where s.sub_id = v_sub.sub_id for update;
    if not found then
        return 0;
    end if;
    if exists (select from pgque.subscription_base m where m.sub_main = v_sub.sub_id) then
        raise exception 'consumer "%" on queue "%" still has subconsumers', x_consumer_name,
                        x_queue_name
            using errcode = 'PQ016',
                  hint = 'End each with: select pgque.unregister_subconsumer(queue, consumer, '
                         'subconsumer);';
    end if;

    delete from pgque.retry_queue r
    where r.ev_owner = v_sub.sub_id;
    if x_keep_dead_letters is not true then
        delete from pgque.dead_letter d
        where d.dl_queue_id = v_sub.sub_queue and d.dl_consumer_id = v_sub.sub_consumer;
    end if;
    delete from pgque.subscription_base s
    where s.sub_id = v_sub.sub_id;
    return 1;
end;
$$;

-- PgQ's form: deletes the dead letters with the registration.
create or replace function pgque.unregister_consumer(x_queue_name text, x_consumer_name text)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.unregister_consumer(x_queue_name, x_consumer_name, false);
end;
$$;
