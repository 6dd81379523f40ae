-- Tracking in the database where a consumer applies its events: it records in the same transaction
-- which tick, batch or event it applied, and asks before it applies one again.

-- Whether this is the last batch that the consumer applied.
create or replace function pgq_ext.is_batch_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, a_batch_id, 'batch');
    return exists (select from pgq_ext.completed_batch b
                   where b.consumer_id = a_consumer and b.subconsumer_id = a_subconsumer
                     and b.last_batch_id = a_batch_id);
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.is_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.is_batch_done(a_consumer, '', a_batch_id);
end;
$$;

-- Records the last batch that the consumer applied. Returns false if it was recorded before, also by
-- a transaction for which this one waited.
-- locks: the consumer's row. writes: completed_batch.
create or replace function pgq_ext.set_batch_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, a_batch_id, 'batch');
    insert into pgq_ext.completed_batch as b (consumer_id, subconsumer_id, last_batch_id)
    select a_consumer, a_subconsumer, a_batch_id
    where a_batch_id > 0
    on conflict (consumer_id, subconsumer_id) do update
    set last_batch_id = excluded.last_batch_id
    where b.last_batch_id <> excluded.last_batch_id;
    return found or a_batch_id <= 0;
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.set_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.set_batch_done(a_consumer, '', a_batch_id);
end;
$$;

-- The last tick that the consumer applied; null before the first.
create or replace function pgq_ext.get_last_tick(a_consumer text, a_subconsumer text)
returns bigint
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, 0, 'tick');
    return (select t.last_tick_id from pgq_ext.completed_tick t
            where t.consumer_id = a_consumer and t.subconsumer_id = a_subconsumer);
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.get_last_tick(a_consumer text)
returns bigint
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.get_last_tick(a_consumer, '');
end;
$$;

-- Records the last tick that the consumer applied; null forgets it. Returns 1.
-- locks: the consumer's row. writes: completed_tick.
create or replace function pgq_ext.set_last_tick(
    a_consumer text, a_subconsumer text, a_tick_id bigint)
returns integer
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, 0, 'tick');
    if a_tick_id is null then
        delete from pgq_ext.completed_tick t
        where t.consumer_id = a_consumer and t.subconsumer_id = a_subconsumer;
    else
        insert into pgq_ext.completed_tick as t (consumer_id, subconsumer_id, last_tick_id)
        values (a_consumer, a_subconsumer, a_tick_id)
        on conflict (consumer_id, subconsumer_id) do update
        set last_tick_id = excluded.last_tick_id;
    end if;
    return 1;
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.set_last_tick(a_consumer text, a_tick_id bigint)
returns integer
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.set_last_tick(a_consumer, '', a_tick_id);
end;
$$;

-- Whether the consumer applied an event of its current batch.
create or replace function pgq_ext.is_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, a_batch_id, 'batch');
    perform pgq_ext.check_arguments(a_consumer, a_subconsumer, a_event_id, 'event');
    return exists (select from pgq_ext.completed_event e
                   where e.consumer_id = a_consumer and e.subconsumer_id = a_subconsumer
                     and e.batch_id = a_batch_id and e.event_id = a_event_id);
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.is_event_done(
    a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.is_event_done(a_consumer, '', a_batch_id, a_event_id);
end;
$$;

-- Records an event of the consumer's current batch. The first event of another batch deletes those
-- of the one before. Returns false if the event was recorded.
-- locks: the consumer's row. writes: completed_event, partial_batch.
create or replace function pgq_ext.set_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
declare
    v_before bigint;
begin
    if pgq_ext.is_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id) then
        return false;
    end if;
    select p.cur_batch_id into v_before
    from pgq_ext.partial_batch p
    where p.consumer_id = a_consumer and p.subconsumer_id = a_subconsumer
    for update;
    if v_before is distinct from a_batch_id then
        delete from pgq_ext.completed_event e
        where e.consumer_id = a_consumer and e.subconsumer_id = a_subconsumer
          and e.batch_id = v_before;
        insert into pgq_ext.partial_batch as p (consumer_id, subconsumer_id, cur_batch_id)
        values (a_consumer, a_subconsumer, a_batch_id)
        on conflict (consumer_id, subconsumer_id) do update
        set cur_batch_id = excluded.cur_batch_id;
    end if;
    insert into pgq_ext.completed_event (consumer_id, subconsumer_id, batch_id, event_id)
    values (a_consumer, a_subconsumer, a_batch_id, a_event_id)
    on conflict do nothing;
    return found;
end;
$$;

-- The form without a subconsumer.
create or replace function pgq_ext.set_event_done(
    a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language plpgsql security definer set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return pgq_ext.set_event_done(a_consumer, '', a_batch_id, a_event_id);
end;
$$;

-- Refuses null as a name or an id: it would be recorded nowhere.
create or replace function pgq_ext.check_arguments(
    a_consumer text, a_subconsumer text, a_id bigint, a_what text)
returns void
language plpgsql set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    if num_nulls(a_consumer, a_subconsumer, a_id) > 0 then
        perform pgque.refuse_value(
            'the name of the consumer or subconsumer, or the %s id, is null', a_what,
            'Pass the consumer''s name, and the id that the queue gave.');
    end if;
end;
$$;

-- Returns 0: the installation brings the tables up to date itself.
create or replace function pgq_ext.upgrade_schema()
returns integer
language plpgsql immutable set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return 0;
end;
$$;

-- The version of pgq_ext whose functions are here.
create or replace function pgq_ext.version()
returns text
language plpgsql immutable set search_path = pgq_ext, pg_catalog, pg_temp
as $$
begin
    return '3.3';
end;
$$;
