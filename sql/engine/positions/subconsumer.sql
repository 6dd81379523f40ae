-- Cooperative consumers: several workers, the subconsumers, share the cursor of one consumer. Each is
-- a subscription of its own, named consumer.subconsumer, which has at most one batch and points to its
-- main consumer (sub_main). Subconsumers are registered and unregistered under a lock on the main
-- consumer's row in subscription_base. coop.sql hands out the batches.

-- Registers a subconsumer, and its main consumer if that is new. A normal consumer becomes a
-- cooperative one only if i_convert_normal is true and it has no open batch. Returns 1, or 0 if the
-- subconsumer was already registered.
-- locks: the main's registration, until commit; those of register_consumer. writes: consumer,
-- subscription_base, position_log.
create or replace function pgque.register_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_convert_normal boolean default false)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_name     text := pgque.subconsumer_name(i_consumer, i_subconsumer);
    v_queue    pgque.queue := pgque.find_queue(i_queue);
    v_main     pgque.subscription;
    v_created  boolean := false;
    v_co_id    integer;
    v_sub_id   integer;
begin
    if exists (select
               from pgque.subscription_base s
               join pgque.consumer c on c.co_id = s.sub_consumer and c.co_name = v_name
               join pgque.subscription_base m on m.sub_id = s.sub_main
               join pgque.consumer mc on mc.co_id = m.sub_consumer and mc.co_name = i_consumer
               where s.sub_queue = v_queue.queue_id) then
        return 0;
    end if;
    insert into pgque.consumer (co_name) values (v_name) on conflict do nothing;
    select c.co_id into v_co_id from pgque.consumer c where c.co_name = v_name;

    loop
        v_created := pgque.register_consumer(i_queue, i_consumer) = 1 or v_created;
        v_main := pgque.find_subscription(i_queue, i_consumer);
        perform from pgque.subscription_base b where b.sub_id = v_main.sub_id for no key update;
        continue when not found;
        v_main := pgque.find_subscription(i_queue, i_consumer);
        if v_main.sub_role <> 'coop_main' then
            if v_main.sub_role <> 'normal' or not (v_created or i_convert_normal is true) then
                perform pgque.refuse_cooperative(v_main, i_queue, i_consumer);
            elsif v_main.sub_batch is not null then
                raise exception 'consumer "%" on queue "%" has batch % open', i_consumer, i_queue,
                                v_main.sub_batch
                    using errcode = 'PQ016',
                          hint = 'Finish it first; then the consumer can become a cooperative one.';
            end if;
            continue when not pgque.append_position(v_main);  -- a batch may be open now
            update pgque.subscription_base set sub_role = 'coop_main' where sub_id = v_main.sub_id;
        end if;

        insert into pgque.subscription_base (sub_queue, sub_consumer, sub_role, sub_main)
        values (v_main.sub_queue, v_co_id, 'coop_member', v_main.sub_id)
        on conflict do nothing
        returning sub_id into v_sub_id;
        if found then
            perform pgque.begin_positions(v_sub_id, null);
            exit;
        end if;
        -- Another session registered it first, or the name belongs to another consumer.
        exit when (pgque.find_subconsumer(v_main, i_queue, v_name)).sub_id is not null;
    end loop;
    return (v_sub_id is not null)::integer;
end;
$$;

-- Returns the full name of a subconsumer: consumer.subconsumer.
create or replace function pgque.subconsumer_name(i_consumer text, i_subconsumer text)
returns text
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if coalesce(i_consumer, '') = '' or coalesce(i_subconsumer, '') = '' then
        perform pgque.refuse_value(
            'the name of the consumer or of the subconsumer is null or empty', null,
            'Pass the name that the workers share, and the worker''s own name.');
    end if;
    return format('%s.%s', i_consumer, i_subconsumer);
end;
$$;

-- Raises an error that says how to use a consumer of this role.
create or replace function pgque.refuse_cooperative(
    i_sub pgque.subscription, i_queue text, i_consumer text)
returns void
language plpgsql immutable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = 'PQ015',
        message = format('consumer "%s" on queue "%s" is %s', i_consumer, i_queue,
                         case i_sub.sub_role when 'normal' then 'a normal one'
                                             when 'coop_main' then 'shared by subconsumers'
                                             when 'slot' then 'a slot of a partitioned one'
                                             else 'a subconsumer' end),
        hint = case i_sub.sub_role
            when 'normal' then 'Convert it with: select pgque.register_subconsumer(queue, consumer, '
                               'subconsumer, true);'
            when 'coop_main' then 'Its batches come from pgque.next_batch(queue, consumer, '
                                  'subconsumer, dead_interval) or pgque.receive_coop(...). It '
                                  'becomes a normal one when pgque.unregister_subconsumer has removed '
                                  'all of them.'
            when 'slot' then 'Use the functions that take queue, consumer and slot: '
                             'pgque.receive_partitioned, pgque.unsubscribe_slot and so on; or claim '
                             'its batches with pgque.claim_batch.'
            else 'Use the functions that take queue, consumer and subconsumer.' end;
end;
$$;

-- Raises the same error for the batch of a slot: only the owner of the slot's lease may finish it. With
-- i_as_pages, only for a slot that is handed out in pages: a page is not the whole batch.
create or replace function pgque.refuse_slot(
    i_sub pgque.subscription, i_as_pages boolean)
returns void
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if i_sub.sub_role = 'slot' and (i_sub.lease_ttl is not null or not i_as_pages) then
        perform pgque.refuse_cooperative(i_sub, q.queue_name, c.co_name)
        from pgque.queue q
        cross join pgque.consumer c
        where q.queue_id = i_sub.sub_queue and c.co_id = i_sub.sub_consumer;
    end if;
end;
$$;

-- Returns a registered subconsumer with its newest position, or null. The name may belong to another
-- consumer: subconsumer b.c of consumer a has the same name as subconsumer c of consumer a.b.
create or replace function pgque.find_subconsumer(
    i_main pgque.subscription, i_queue text, i_name text)
returns pgque.subscription
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    select s.* into v_sub
    from pgque.subscription s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = i_main.sub_queue
      and c.co_name = i_name;
    if not found then
        perform pgque.check_positions_visible();
        return null;
    end if;
    if v_sub.sub_main is distinct from i_main.sub_id then
        raise exception 'the name "%" on queue "%" belongs to another consumer', i_name, i_queue
            using errcode = 'PQ015',
                  hint = 'A normal consumer, or a subconsumer of another consumer, has that name: '
                         'choose another name for the subconsumer.';
    end if;
    return v_sub;
end;
$$;

-- Unregisters a subconsumer. After the last one, the main consumer becomes a normal one again. If a
-- batch is open, i_batch_handling 0 refuses and 1 returns its events as nack_batch does. Returns 1, or
-- 0 if the subconsumer was not registered.
-- locks: the main's registration; waits for a concurrent move of the subconsumer. writes:
-- subscription_base, position_log, retry_queue, dead_letter.
create or replace function pgque.unregister_subconsumer(
    i_queue text, i_consumer text, i_subconsumer text, i_batch_handling integer default 0)
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_name  text := pgque.subconsumer_name(i_consumer, i_subconsumer);
    v_main  pgque.subscription := pgque.look_for_subscription(i_queue, i_consumer);
    v_sub   pgque.subscription;
begin
    if i_batch_handling is null or i_batch_handling not in (0, 1) then
        perform pgque.refuse_value(
            'unknown batch handling: %s', i_batch_handling::text,
            '0 refuses while a batch is open, 1 schedules its events for another delivery.');
    end if;
    perform from pgque.subscription_base b where b.sub_id = v_main.sub_id for no key update;
    v_sub := pgque.find_subconsumer(v_main, i_queue, v_name);
    if v_sub.sub_id is null then
        return 0;
    end if;
    perform pgque.end_subconsumer(v_main.sub_id, v_sub.sub_id, i_batch_handling);
    return 1;
end;
$$;

-- Does the work that unregister_subconsumer and unregister_consumer share. Until commit, the position
-- that it writes prevents others from finishing the batch or taking it over.
-- locks: those of unregister_subconsumer. writes: the same.
create or replace function pgque.end_subconsumer(
    i_main_id integer, i_sub_id integer, i_batch_handling integer)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_sub pgque.subscription;
begin
    perform from pgque.subscription_base b where b.sub_id = i_main_id for no key update;
    loop
        select s.* into v_sub from pgque.subscription s where s.sub_id = i_sub_id;
        if not found then
            return;
        end if;
        if v_sub.sub_batch is not null and i_batch_handling = 0 then
            raise exception 'the subconsumer has batch % open', v_sub.sub_batch
                using errcode = 'PQ016', hint = 'Finish it first, or pass batch_handling 1: then '
                                                'its events are delivered again to the others.';
        end if;
        exit when pgque.append_position(v_sub);
    end loop;

    if v_sub.sub_batch is not null then
        perform pgque.nack_batch(
            v_sub.sub_batch,
            array(select e.ev_id from pgque.get_batch_events(v_sub.sub_batch) e),
            i_reason => 'subconsumer unregistered');
    end if;
    delete from pgque.subscription_base b where b.sub_id = i_sub_id;
    update pgque.subscription_base b
    set sub_role = 'normal'
    where b.sub_id = i_main_id
      and not exists (select from pgque.subscription_base m where m.sub_main = i_main_id);
end;
$$;
