-- The logs that may be rotated now: the period is over, or the other half is the current one.
create or replace view pgque.rotation_due as
select r.log_name
from pgque.log_rotation r
cross join pgque.config c
left join pgque.log l on l.log_name = r.log_name
where r.rotated_at is null
   or r.rotated_at <= clock_timestamp() - c.metadata_rotation_period
   or l.half = 1;

-- Rotates one log (position, tick, counter, history) when metadata_rotation_period is over since the
-- last time and it holds enough that is obsolete, and goes back to the first half as soon as that is
-- empty. Returns whether it did. Another maintenance that is at it is left alone.
-- locks: the log's row in log_rotation; those of the compaction. writes: what that writes.
create or replace function pgque.maint_rotate_metadata(i_log text)
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_dropped integer;
begin
    perform pgque.check_log_name(i_log);
    if not exists (select from pgque.rotation_due d where d.log_name = i_log) then
        return 0;
    end if;
    perform from pgque.log_rotation r where r.log_name = i_log for update skip locked;
    if not found then
        return 0;
    end if;
    v_dropped := case i_log
        when 'position' then pgque.maint_compact_positions()
        when 'tick' then pgque.maint_compact_ticks()
        when 'counter' then pgque.maint_compact_counters()
        else pgque.maint_compact_history() end;
    if v_dropped <= 0 then
        return 0;
    end if;
    update pgque.log_rotation r set rotated_at = clock_timestamp() where r.log_name = i_log;
    return 1;
end;
$$;

-- The same for all logs, and empties the halves that are needed no more; that of the ticks last, so
-- that no copy is made under its lock. Returns how many it rotated.
-- locks: those of maint_empty_half and of the form above. writes: the same.
create or replace function pgque.maint_rotate_metadata()
returns integer
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_log   text;
    v_done  integer := 0;
begin
    perform pgque.maint_copy_ticks();
    foreach v_log in array array['history', 'counter', 'tick'] loop
        v_done := v_done + pgque.maint_rotate_metadata(v_log);
    end loop;
    perform pgque.maint_empty_half('position');
    v_done := v_done + pgque.maint_rotate_metadata('position');
    perform pgque.maint_empty_half('tick');
    return v_done;
end;
$$;
