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

do $$
begin
    perform pgque.upgrade_schema();
end;
$$;
