-- Rotates the logs of positions, ticks and counters when their period, metadata_rotation_period, is
-- over and they hold enough that is obsolete. Returns how many it rotated. Another maintenance that is
-- at it is left alone.
-- locks: the row of config; those of the compactions. writes: config, position_log, tick,
-- counter_log, history.
create or replace function pgque.maint_rotate_metadata()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_done integer;
begin
    perform from pgque.config c
    where c.metadata_rotated_at is null
       or c.metadata_rotated_at <= clock_timestamp() - c.metadata_rotation_period
    for update skip locked;
    if not found then
        return 0;
    end if;

    v_done := (pgque.maint_compact_positions() > 0)::integer
              + (pgque.maint_compact_ticks() > 0)::integer
              + (pgque.maint_compact_counters() > 0)::integer
              + (pgque.maint_compact_history() > 0)::integer;
    if v_done > 0 then
        update pgque.config set metadata_rotated_at = clock_timestamp();
    end if;
    return v_done;
end;
$$;
