-- Returns the checks of the whole database: whether a restore was adopted, whether the logs are
-- rotated, and who keeps dead rows from being removed.
create or replace function pgque.database_health()
returns table (queue_name text, check_name text, status text, detail text)
language plpgsql
as $$
begin
    return query
    select null::text, 'restored_database',
           case when c.origin_id <> o.origin_id then 'critical' else 'ok' end,
           case when c.origin_id <> o.origin_id
                then 'restored from a dump and not adopted, nothing moves: run select '
                     'pgque.adopt_restored_database();'
                else 'transaction ids are of this cluster' end
    from pgque.config c
    cross join pgque.origin o;

    return query select null::text, 'log_rotation', l.status, l.detail from pgque.log_health() l;

    return query select null::text, 'xmin_horizon', x.status, x.detail from pgque.xmin_health() x;
end;
$$;

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
-- which session locks it or may still read the half that was left. A log below 16 MB is ok, and so
-- are the ticks that a retention keeps.
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

-- Names the sessions and prepared transactions that have begun before i_age and hold a lock on one of
-- our tables whose name matches, or are among i_transactions (virtual transaction ids); null if there
-- are none.
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
          and (l.pid is null or a.xact_start <= clock_timestamp() - i_age)
          and l.pid is distinct from pg_backend_pid());
end;
$$;

-- Lists what keeps dead rows from being removed in this database: open transactions, prepared
-- transactions and replication slots. Not every role may see when another role's transaction began.
create or replace view pgque.xmin_holder as
select format('session %s of %s', a.pid, coalesce(quote_ident(a.usename), 'nobody')) as holder,
       a.xact_start as since,
       a.xact_start is null and a.usename is not null
       and not pg_has_role(current_user, a.usename, 'member')
       and not pg_has_role(current_user, 'pg_read_all_stats', 'member') as is_hidden,
       greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions,
       format('select pg_terminate_backend(%s);', a.pid) as remedy
from pg_stat_activity a
where (a.backend_xmin is not null or a.backend_xid is not null)
  and a.pid <> pg_backend_pid()
  and a.backend_type is distinct from 'autovacuum worker'
  and (a.datname = current_database() or a.datname is null)
union all
select format('prepared transaction %s', quote_literal(p.gid)), p.prepared, false,
       age(p.transaction), format('rollback prepared %L;', p.gid)
from pg_prepared_xacts p
where p.database = current_database()
union all
select format('replication slot %s', quote_ident(s.slot_name)), null, false, age(s.xmin),
       format('select pg_drop_replication_slot(%L);', s.slot_name)
from pg_replication_slots s
where s.xmin is not null;

-- Checks the oldest of them, by time if that is known, else by the number of transactions since.
create or replace function pgque.xmin_health(out status text, out detail text)
returns record
language plpgsql
as $$
declare
    v_worst record;
begin
    select h.*, date_trunc('seconds', clock_timestamp() - h.since) as held,
           case when clock_timestamp() - h.since > interval '1 hour'
                  or h.transactions > 100000000 then 3
                when clock_timestamp() - h.since > interval '10 minutes'
                  or h.since is null and not h.is_hidden and h.transactions > 10000000 then 2
                when h.is_hidden then 1
                else 0 end as severity
    into v_worst
    from pgque.xmin_holder h
    order by severity desc, h.since, h.transactions desc
    limit 1;

    status := (array['ok', 'unknown', 'warning', 'critical'])[coalesce(v_worst.severity, 0) + 1];
    detail := case
        when v_worst.holder is null then 'no transaction is open'
        when status = 'ok' then format('oldest: %s, %s transactions ago', v_worst.holder,
                                       v_worst.transactions)
        when status = 'unknown'
        then format('%s has a transaction open, %s may not see since when: grant pg_read_all_stats '
                    'to %s;', v_worst.holder, current_user, quote_ident(current_user))
        else format('%s holds back dead rows since %s (%s transactions): end it, for example with %s',
                    v_worst.holder, coalesce(v_worst.held::text, 'an unknown time'),
                    v_worst.transactions, v_worst.remedy) end;
end;
$$;
