-- Checks the logs of positions, ticks and counters: whether one grows because it is not rotated, and which
-- session locks it or may still read the half that was left. A log below 16 MB is ok, and so are ticks
-- that are still needed.
create or replace function pgque.log_health(out status text, out detail text)
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_log     record;
    v_holder  text;
begin
    select r.log_name, w.holders, size.bytes, coalesce(r.rotated_at, c.installed_at) as last_time,
           size.bytes >= 16 * 1024 * 1024
           and coalesce(r.rotated_at, c.installed_at)
               <= clock_timestamp() - interval '1 minute'
                  - 5 * c.metadata_rotation_period
           and (r.log_name <> 'tick' or pgque.are_ticks_obsolete()) as is_left
    into v_log
    from pgque.log_rotation r
    cross join pgque.config c
    left join pgque.snapshot_wait w on w.wait_name = r.log_name
    cross join lateral (
        select sum(pg_total_relation_size(t.oid)) as bytes
        from pg_class t
        where t.relnamespace = 'pgque'::regnamespace
          and t.relname = any (array[r.log_name || '_log', r.log_name || '_log_0',
                                     r.log_name || '_log_1'])
          and t.relkind = 'r'
    ) size
    order by is_left desc, size.bytes desc
    limit 1;
    if not v_log.is_left then
        status := 'ok';
        detail := format('%s log: %s, last rotated %s ago', v_log.log_name,
                         pg_size_pretty(v_log.bytes),
                         date_trunc('seconds', clock_timestamp() - v_log.last_time));
        return;
    end if;

    v_holder := pgque.lock_holders(
        format('^%s(_log|$)', v_log.log_name), v_log.holders, interval '10 seconds');
    status := case when v_log.bytes < 1024 * 1024 * 1024 then 'warning' else 'critical' end;
    detail := format('the %s log has grown to %s, last rotated %s ago: %s', v_log.log_name,
                     pg_size_pretty(v_log.bytes),
                     date_trunc('seconds', clock_timestamp() - v_log.last_time),
                     coalesce(v_holder || ' keeps it locked or may still read it: let it end its '
                              'transaction',
                              'see that pgque.maint() is called, and that no consumer is far behind'));
end;
$$;

-- The checks of the whole database: whether a restore was adopted, and whether the logs are rotated.
create or replace view pgque.database_health (queue_name, check_name, status, detail) as
select null::text, 'restored_database',
       case when c.origin_id <> o.origin_id then 'critical' else 'ok' end,
       case when c.origin_id <> o.origin_id
            then 'restored from a dump and not adopted, nothing moves: run select '
                 'pgque.adopt_restored_database();'
            else 'transaction ids are from this cluster' end
from pgque.config c
cross join pgque.origin o
union all
select null, 'log_rotation', l.status, l.detail from pgque.log_health() l;
