-- The logs that may be rotated now: their period is over, or they are on their second half.
create or replace view pgque.rotation_due as
select r.log_name
from pgque.log_rotation r
cross join pgque.config c
left join pgque.log l on l.log_name = r.log_name
where r.rotated_at is null
   or r.rotated_at <= clock_timestamp() - c.metadata_rotation_period
   or l.half = 1;

-- Rotates one log (position, tick, counter) if metadata_rotation_period has passed since
-- the last time and the log holds enough obsolete rows. A log on its second half goes back to the
-- first as soon as that is empty. Returns 1 if it rotated the log, else 0. Skips a log that another
-- session is rotating.
-- locks: the log's row in log_rotation; those of the compaction. writes: what that writes.
create or replace function pgque.maint_rotate_metadata(i_log text)
returns integer
language plpgsql security definer
set lock_timeout = '1s'
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
        else pgque.maint_compact_counters() end;
    if v_dropped <= 0 then
        return 0;
    end if;
    update pgque.log_rotation r set rotated_at = clock_timestamp() where r.log_name = i_log;
    return 1;
end;
$$;

-- Rotates all logs, and empties the halves that are no longer needed. The half of the ticks comes
-- last, so that no copy is made under its lock. Returns how many logs it rotated.
-- locks: those of maint_empty_half and of the form above. writes: the same.
create or replace function pgque.maint_rotate_metadata()
returns integer
language plpgsql security definer
set lock_timeout = '1s'
as $$
declare
    v_log   text;
    v_done  integer := 0;
begin
    perform pgque.maint_copy_ticks();
    foreach v_log in array array['counter', 'tick'] loop
        v_done := v_done + pgque.maint_rotate_metadata(v_log);
    end loop;
    perform pgque.maint_empty_half('position');
    v_done := v_done + pgque.maint_rotate_metadata('position');
    perform pgque.maint_empty_half('tick');
    return v_done;
end;
$$;
