-- Whether the log of ticks has at most twice the ticks that the retention of queues keeps, which is
-- when compaction is due.
create or replace function pgque.is_tick_log_retained()
returns boolean
language plpgsql
as $$
begin
    return exists (select from pgque.queue q where q.queue_retention is not null)
       and (select count(*) from pgque.tick)
           <= 1000 + 2 * (select count(*)
                          from (select q.queue_id, pgque.find_retention_tick(q) as first_tick
                                from pgque.queue q
                                where q.queue_retention is not null) r
                          join pgque.tick t
                              on t.tick_queue = r.queue_id and t.tick_id >= r.first_tick);
end;
$$;

-- Checks the logs of positions, ticks and counters: whether one grows because it is not rotated, and
-- which session locks it or may still read the half that was left. A log below 16 MB is ok, and so are
-- the ticks that a retention keeps.
create or replace function pgque.log_health(out status text, out detail text)
returns record
language plpgsql
as $$
declare
    v_log     record;
    v_holder  text;
begin
    select r.log_name, w.holders, size.bytes, coalesce(r.rotated_at, c.installed_at) as last_time,
           size.bytes >= 16 * 1024 * 1024
           and coalesce(r.rotated_at, c.installed_at)
               <= clock_timestamp() - interval '1 minute'
                  - 5 * c.metadata_rotation_period
           and not (r.log_name = 'tick' and pgque.is_tick_log_retained()) as is_left
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

-- Names the sessions and prepared transactions that began longer than i_age ago, as far as we may see
-- that, and hold a lock on one of our tables whose name matches, or are among i_transactions (virtual
-- transaction ids); null if there are none.
create or replace function pgque.lock_holders(
    i_tables text, i_transactions text[], i_age interval)
returns text
language plpgsql
as $$
begin
    return (
        select string_agg(distinct coalesce('session ' || l.pid, 'a prepared transaction'), ', ')
        from pg_locks l
        left join pg_class c on c.oid = l.relation and c.relnamespace = 'pgque'::regnamespace
             and c.relkind in ('r', 'p') and c.relname ~ i_tables
             and l.database = (select d.oid from pg_database d where d.datname = current_database())
        left join pg_stat_activity a on a.pid = l.pid
        where l.granted
          and (c.oid is not null
               or l.locktype = 'virtualxid' and l.virtualtransaction = any (i_transactions))
          and (a.xact_start > clock_timestamp() - i_age) is not true
          and l.pid is distinct from pg_backend_pid());
end;
$$;

-- The checks of the whole database: whether a restore was adopted, and whether the logs are rotated.
create or replace view pgque.database_health (queue_name, check_name, status, detail) as
select null::text, 'restored_database',
       case when c.origin_id <> o.origin_id then 'critical' else 'ok' end,
       case when c.origin_id <> o.origin_id
            then 'restored from a dump and not adopted, nothing moves: run select '
                 'pgque.adopt_restored_database();'
            else 'transaction ids are of this cluster' end
from pgque.config c
cross join pgque.origin o
union all
select null, 'log_rotation', l.status, l.detail from pgque.log_health() l;
