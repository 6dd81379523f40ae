-- Creates each queue's generated functions in this version. Returns the number of queues. The
-- installation calls it last, for queues that an older version created.
-- locks: the rows of all queues. writes: the catalog.
create or replace function pgque.upgrade_schema()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_queues integer;
begin
    perform pgque.build_queue_functions(q.queue_id), pgque.open_event_tables(q.queue_id)
    from (select queue_id from pgque.queue order by queue_id for update) q;
    get diagnostics v_queues = row_count;
    perform pgque.build_insert_dispatch();
    return v_queues;
end;
$$;

-- Earlier versions did not store the idempotency key with the event.
drop function if exists pgque.dispatch_insert_as(integer, bigint, text, text, text);

do $$
declare
    v_queue_id integer;
begin
    for v_queue_id in select q.queue_id from pgque.queue q loop
        execute format('drop function if exists pgque.%I(bigint, text, text, text)',
                       format('event_%s_insert_as', v_queue_id));
    end loop;
    perform pgque.upgrade_schema();
end;
$$;

-- No view reads the logs of earlier versions any more (schema/log.sql).
drop table if exists pgque.tick_before, pgque.position_before;
