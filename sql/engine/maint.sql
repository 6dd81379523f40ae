-- All maintenance in one call, for any scheduler: rotation of events, retries, events whose time has
-- come, expired idempotency keys, what dead writers left, rotation of the logs. Returns how many things it did. What it
-- cannot lock it leaves for the next call. The logs come last, since their locks are kept until
-- commit.
-- locks: those of the functions it calls. writes: the same.
create or replace function pgque.maint()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_done   integer;
    v_queue  text;
begin
    v_done := pgque.maint_rotate_tables_step2();
    for v_queue in select q.queue_name from pgque.queue q order by q.queue_id loop
        v_done := v_done + pgque.maint_rotate_tables_step1(v_queue);
    end loop;
    v_done := v_done + pgque.maint_retry_events() + pgque.maint_deliver_delayed()
              + pgque.maint_idem() + pgque.maint_staging();
    return v_done + pgque.maint_rotate_metadata();
end;
$$;
