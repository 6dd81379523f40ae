-- Brings the functions and rights of each queue to this version. Returns the number of queues. The
-- installation calls it last, for queues that an older version created.
-- locks: the rows of all queues, for at most 10 seconds each. writes: the catalog.
create or replace function pgque.upgrade_schema()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10s'
as $$
declare
    v_queue_id  integer;
    v_queues    integer := 0;
begin
    for v_queue_id in
        select q.queue_id from pgque.queue q order by q.queue_id for no key update
    loop
        perform pgque.build_functions(v_queue_id);
        perform pgque.open_event_tables(v_queue_id);
        v_queues := v_queues + 1;
    end loop;
    return v_queues;
end;
$$;

select pgque.upgrade_schema();

-- In 0.3, events could wait for a failed event of their key. They become retries of their slot, each due no
-- earlier than those before it. The slot's page is handed out again, because the waiting events are in its
-- batch now, and its lease ends, so that nobody acks the earlier page. A whole batch has to be finished
-- first: its results may be stored without them.
do $$
declare
    v_sub pgque.subscription;
begin
    if to_regclass('pgque.partition_held') is null then
        return;
    end if;
    for v_sub in
        select s.*
        from pgque.subscription s
        where s.sub_id in (select h.sub_id from pgque.partition_held h)
    loop
        if v_sub.sub_batch is not null and v_sub.lease_ttl is null then
            raise exception using
                errcode = 'PQ016',
                message = (select format('slot "%s" on queue "%s" has batch %s open, and events that '
                                         'wait for a failed one', c.co_name, q.queue_name,
                                         v_sub.sub_batch)
                           from pgque.consumer c, pgque.queue q
                           where c.co_id = v_sub.sub_consumer and q.queue_id = v_sub.sub_queue),
                hint = 'Finish this batch with the installed version, and then upgrade. Nothing was '
                       'changed.';
        end if;
        v_sub.page_to := null;
        perform pgque.stop_slots(array[v_sub]);
    end loop;
    insert into pgque.retry_queue (
        ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    select coalesce(max(h.retry_after) over (partition by h.sub_id, h.ev_extra1 order by h.ev_id),
                    clock_timestamp()),
           s.sub_queue, h.ev_id, h.ev_time, h.ev_txid, h.sub_id, h.ev_retry, h.ev_type, h.ev_data,
           h.ev_extra1, h.ev_extra2, h.ev_extra3, h.ev_extra4
    from pgque.partition_held h
    join pgque.subscription_base s on s.sub_id = h.sub_id
    on conflict do nothing;
    drop table pgque.partition_held;
end;
$$;

do $$
declare
    v_names  constant text := (
        select string_agg(format('pgque_%s.sql', a.addon_name), ', ' order by a.addon_name)
        from pgque.addon a
        where a.addon_version <> '@VERSION@');
begin
    if v_names is not null then
        raise warning using
            message = format('add-ons have another version than pgque @VERSION@: install %s',
                             v_names);
    end if;
end;
$$;
