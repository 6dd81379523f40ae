-- Cooperative consumers under PgQ's names: several subconsumers share the batches of one consumer.

-- Registers a subconsumer, and its main consumer if that is new; a normal consumer becomes a
-- cooperative one. Returns 1, or 0 if the subconsumer was registered.
-- locks: those of pgque.register_subconsumer. writes: the same.
create or replace function pgq_coop.register_subconsumer(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text)
returns integer
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgque.register_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name, true);
end;
$$;

-- Unregisters a subconsumer. If it has a batch, 0 refuses, and 1 returns the batch's events to the
-- retries of the main consumer. Returns 1, or 0 if it was not registered.
-- locks: those of pgque.unregister_subconsumer. writes: the same.
create or replace function pgq_coop.unregister_subconsumer(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_batch_handling integer)
returns integer
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgque.unregister_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name,
                                        i_batch_handling);
end;
$$;

-- A subconsumer's open or next batch within limits; null when there is none. A subconsumer that is
-- new is registered. With a dead interval, the batch of a subconsumer that showed no sign of life
-- for that long comes first, under a new id.
-- locks: those of pgque.next_batch_custom and register_subconsumer. writes: the same.
create or replace function pgq_coop.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_min_lag interval, i_min_count integer, i_min_interval interval, i_dead_interval interval)
returns bigint
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    if not exists (select
                   from pgque.queue q
                   join pgque.subscription_base s on s.sub_queue = q.queue_id
                   join pgque.consumer c on c.co_id = s.sub_consumer
                   where q.queue_name = i_queue_name and s.sub_role = 'coop_member'
                     and c.co_name = format('%s.%s', i_consumer_name, i_subconsumer_name)) then
        perform pgq_coop.register_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name);
    end if;
    return (pgque.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, i_min_lag,
                                    i_min_count, i_min_interval, i_dead_interval)).batch_id;
end;
$$;

-- The same without taking batches over.
create or replace function pgq_coop.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_min_lag interval, i_min_count integer, i_min_interval interval)
returns bigint
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, i_min_lag,
                                      i_min_count, i_min_interval, null);
end;
$$;

-- The same without limits.
create or replace function pgq_coop.next_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text)
returns bigint
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, null, null,
                                      null, null);
end;
$$;

-- The same without limits, with a dead interval.
create or replace function pgq_coop.next_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_dead_interval interval)
returns bigint
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, null, null,
                                      null, i_dead_interval);
end;
$$;

-- Finishes a subconsumer's batch. Raises an error if it is not open, for example because another
-- subconsumer took it over.
-- locks: those of pgque.finish_batch. writes: the same.
create or replace function pgq_coop.finish_batch(i_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return pgque.finish_batch(i_batch_id);
end;
$$;

-- The version of pgq_coop whose functions are here.
create or replace function pgq_coop.version()
returns text
language plpgsql immutable set search_path = pgq_coop, pg_catalog, pg_temp
as $$
begin
    return '3.4';
end;
$$;
