-- Returns problems and what to do about them: a row for each queue and check, and for each consumer the
-- rows consumer_lag:<name>, held_batch:<name> and failing_batch:<name>. Checks of the whole database have
-- no queue. The status is ok, warning or critical.
create or replace function pgque.queue_health()
returns table (queue_name text, check_name text, status text, detail text)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query
    select h.queue_name, h.check_name, h.status, h.detail
    from (
        select * from pgque.database_health
        union all select * from pgque.ticker_health
        union all select * from pgque.relay_health
        union all select * from pgque.rotation_health
        union all select * from pgque.left_table_health()
        union all select * from pgque.failure_health
        union all select * from pgque.consumer_health
        union all select * from pgque.capture_health
        union all select * from pgque.asset_health
        union all select * from pgque.replica_health
    ) h
    order by h.queue_name nulls first, h.check_name;
end;
$$;

-- A queue gets a tick at least once per idle period, so if it gets none for twice this time, no ticker is
-- running, whether events were sent or not.
create or replace view pgque.ticker_health (queue_name, check_name, status, detail) as
select q.queue_name, 'ticker_running',
       case when q.queue_ticker_paused then 'warning'
            when q.tick_id is null or t.age > 5 * q.queue_ticker_idle_period + interval '1 minute'
                then 'critical'
            when t.age > 2 * q.queue_ticker_idle_period + interval '10 seconds' then 'warning'
            else 'ok' end,
       case when q.queue_ticker_paused
            then format('paused, last tick %s ago: resume with select '
                        'pgque.set_queue_config(%L, ''ticker_paused'', ''false'');',
                        t.age, q.queue_name)
            when q.tick_id is null then 'never ticked: create the queue again'
            when t.age <= 2 * q.queue_ticker_idle_period + interval '10 seconds'
            then format('last tick %s ago', t.age)
            when q.queue_external_ticker
            then format('last tick %s ago, due after %s: check the external ticker that feeds '
                        'this queue', t.age, q.queue_ticker_idle_period)
            when r.queue_name is not null
            then format('last tick %s ago, due after %s: see that `pgque relay %s` runs',
                        t.age, q.queue_ticker_idle_period, q.queue_name)
            else format('last tick %s ago, due after %s: see that pgque.ticker() is called, by '
                        'pgque.start() or by a ticker process', t.age, q.queue_ticker_idle_period)
       end
from pgque.queue_progress q
left join pgque.relays() r on r.queue_name = q.queue_name
cross join lateral (
    select date_trunc('milliseconds', clock_timestamp() - q.tick_time) as age
) t;

-- While a relay does not run, its slot holds the WAL: more than max_wal_size, or up to the allowed limit.
create or replace view pgque.relay_health (queue_name, check_name, status, detail) as
select r.queue_name, 'relay',
       case when r.problem is not null or r.wal_status = 'unreserved' then 'critical'
            when r.wal_status = 'extended' or r.left_bytes < r.held_bytes then 'warning'
            else 'ok' end,
       case when r.problem is not null
            then format('%s: run `pgque relay %s --drop`, and begin again', r.problem, r.queue_name)
            else format('its slot holds %s of the WAL%s: see that `pgque relay %s` runs', pg_size_pretty(r.held_bytes),
                        ', and is lost after ' || pg_size_pretty(r.left_bytes) || ' more', r.queue_name) end
from pgque.relays() r;

-- Returns what keeps rotation from emptying the next event table although no consumer is behind: sessions
-- whose snapshots it waits for, sessions that lock the table, or unread events in it from a writer that
-- asked for the current table long ago. Null if nothing does.
create or replace function pgque.rotation_obstacle(i_queue pgque.queue)
returns text
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_table   text := format('%s_%s', i_queue.queue_data_pfx,
                             (i_queue.queue_cur_table + 1) % i_queue.queue_ntables);
    v_floor   pg_snapshot := (pgque.find_truncation_floor(i_queue.queue_id)).tick_snapshot;
    v_holder  text;
    v_unread  boolean;
begin
    v_holder := pgque.lock_holders(
        null, (select w.holders from pgque.snapshot_wait w
               where w.wait_name = format('queue %s', i_queue.queue_id)), '0');
    if v_holder is not null then
        return format('%s may still read what would be truncated: let it end its transaction; '
                      'rotation waits for %s at most', v_holder,
                      (select max(r.patience) from pgque.log_rotation r));
    end if;

    v_holder := pgque.lock_holders(format('^%s$', split_part(v_table, '.', 2)), null, '0');
    if v_holder is not null then
        return format('%s uses table %s, which is emptied next: let it end its transaction',
                      v_holder, v_table);
    end if;
    execute format('select exists (select from %s where ev_txid >= $1 '  -- quoted: a number's
                   'and not pg_visible_in_snapshot(ev_txid, $2))', v_table)
    into v_unread using pg_snapshot_xmin(v_floor), v_floor;
    if v_unread then
        return format('table %s, which is emptied next, still gets events: its loader has '
                      'to ask pgque.current_event_table(%L) before each load', v_table,
                      i_queue.queue_name);
    end if;
    return null;
end;
$$;

-- Rotation is due once per interval (rotation_interval) if the queue has events. It is blocked if
-- maintenance does not run, or if a consumer still needs the oldest events.
create or replace view pgque.rotation_health (queue_name, check_name, status, detail) as
select q.queue_name, 'rotation_health',
       case when t.is_fine then 'ok'
            when t.age > 4 * t.period + interval '5 minutes' then 'critical'
            else 'warning' end,
       concat(format('last rotation %s ago, period %s', t.age, t.period), case
            when t.is_fine then ''
            when slowest.tick_time < clock_timestamp() - t.period
            then format(': consumer "%s" still needs old events; let it catch up, or end it with '
                        'select pgque.unregister_consumer(%L, %L);', slowest.co_name,
                        q.queue_name, slowest.co_name)
            when kept.table_name is not null
            then format(': the changes of table %1$s are kept, which is set apart: see replica:%2$s/%1$s; '
                        'to have it copied without them: '
                        'select pgque.forget_replicated(%3$L, %2$L, %1$L);',
                        kept.table_name, kept.co_name, q.queue_name)
            when q.queue_ticker_paused
            then format(': the ticker is paused, and events stay until a tick; resume it with '
                        'select pgque.resume_queue(%L);', q.queue_name)
            else ': ' || coalesce(pgque.rotation_obstacle(q),
                                 'see that pgque.maint() is called, by pgque.start() or by a '
                                 'ticker process') end)
from pgque.queue q
cross join lateral (
    select date_trunc('milliseconds', clock_timestamp() - q.queue_switch_time) as age,
           pgque.rotation_interval(q) as period
) a
cross join lateral (
    select a.age, a.period,
           case when a.age <= 2 * a.period + interval '1 minute' then true
                else pgque.event_bytes(q) = 0 end as is_fine
) t
left join lateral (
    select p.co_name, p.tick_time
    from pgque.consumer_progress p
    where not t.is_fine and p.sub_queue = q.queue_id and p.sub_last_tick < p.newest_tick
    order by p.sub_last_tick, p.co_name
    limit 1
) slowest on true
left join lateral (
    select k.table_name, c.co_name
    from pgque.kept_for_table k
    join pgque.consumer c on c.co_id = k.sub_consumer
    where not t.is_fine and k.queue_id = q.queue_id
    order by k.tick_id
    limit 1
) kept on true;

-- Checks for event tables that rotation skips because a writer still fills them: tables that are not
-- current, have events from before the last four periods although no consumer is behind, and got some
-- since the last rotation. Tables smaller than 64 kB are ignored.
create or replace function pgque.left_table_health()
returns table (queue_name text, check_name text, status text, detail text)
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_table  record;
    v_first  timestamptz;
    v_new    boolean;
begin
    for v_table in
        select q.queue_id, q.queue_name as name, pgque.rotation_interval(q) as period, c.relation,
               q.queue_switch_step1::text::xid8 as switched_by,
               pg_relation_size(to_regclass(c.relation)) as bytes
        from pgque.queue q
        cross join generate_series(0, q.queue_ntables - 1) nr
        cross join lateral format('%s_%s', q.queue_data_pfx, nr) c (relation)
        where nr <> q.queue_cur_table
          and clock_timestamp() - q.queue_switch_time
              <= 2 * pgque.rotation_interval(q) + interval '1 minute'
          and pg_relation_size(to_regclass(c.relation)) > 65536
    loop
        execute format('select (select ev_time from %1$s order by ev_txid limit 1), '  -- quoted: a number's
                       'exists (select from %1$s where ev_txid > $1)', v_table.relation)
        into v_first, v_new using v_table.switched_by;
        continue when not v_new
            or v_first > clock_timestamp() - 4 * v_table.period - interval '5 minutes'
            or (pgque.find_floor_tick(v_table.queue_id)).tick_time
               < clock_timestamp() - v_table.period;
        queue_name := v_table.name;
        check_name := format('left_table:%s', v_table.relation);
        status := 'warning';
        detail := format('%s holds events since %s (%s) and is not emptied, since it still gets some: '
                         'its loader has to ask pgque.current_event_table(%L) before each '
                         'load', v_table.relation, date_trunc('seconds', v_first),
                         pg_size_pretty(v_table.bytes), v_table.name);
        return next;
    end loop;
end;
$$;

-- Returns the captured tables of which some changes do not become events, and those that none of the queue's
-- replicas has, although it has some: they skip the events. A table that one had was removed.
create or replace view pgque.capture_health (queue_name, check_name, status, detail) as
select c.queue_name, 'captured_table:' || c.table_name,
       case when c.problem is null and u.left_at is not null then 'warning' else 'critical' end,
       coalesce(c.problem || '; the queue may lack changes until its owner fixes that', s.why,
                format('none of the queue''s replicas has it%s, and its changes are skipped: add it to '
                       'the tables of one, or let its owner end the capture: select pgque.uncapture(%L, %L);',
                       ' since ' || date_trunc('seconds', u.left_at), c.table_name, c.queue_name))
from pgque.captured_tables() c
left join lateral (
    select true as is_left, max(r.left_at) filter (where r.table_name = c.table_name) as left_at
    from pgque.replica_state r
    where r.queue_name = c.queue_name
    having count(*) > count(r.left_at)
       and not coalesce(bool_or(r.left_at is null and r.table_name = c.table_name), false)) u on true
left join lateral (
    select format('gets no new rows from subscription %s, because it is %s', s.subname, case
               when not s.subenabled then 'disabled' when l.srsubstate = 'r' then 'not running: see the server''s log'
               else 'still copying the table: if that lasts, see the server''s log' end)
           collate "default" as why from pgque.capture_relations(to_regclass(c.table_name)) r
    join pg_subscription_rel l on l.srrelid = r join pg_subscription s on s.oid = l.srsubid
    where l.srsubstate <> 'r' or not s.subenabled or not exists (
        select from pg_stat_subscription w
        where w.subid = s.oid and w.last_msg_receipt_time > now() - interval '5 minutes')
    limit 1) s on true
where c.problem is not null or u.is_left or s.why is not null;

-- Returns the consumers of assets that their location no longer has, and of locations that have not
-- reported lately (note_location). It leaves out a consumer that has worked since the report: its runs are
-- started in another way.
create or replace view pgque.asset_health (queue_name, check_name, status, detail) as
select distinct on (q.queue_name, n.co_name)
       q.queue_name, format('consumer_asset:%s', n.co_name),
       case when l.seen_at > clock_timestamp() - interval '1 hour' and not n.is_gone
            then 'warning' else 'critical' end,
       format('belongs to %s, %s; if the asset was renamed or moved, give it consumer="%s" and move '
              'the consumer to it by `pgque assign`, or else end it with select '
              'pgque.unregister_consumer(%L, %L);',
              pgque.asset_name(d.deployment, d.location, d.assets),
              case when n.is_gone then 'which is gone from there'
                   else format('which was last seen at %s: check that it runs',
                               date_trunc('seconds', l.seen_at)) end,
              n.co_name, q.queue_name, n.co_name)
from pgque.code_location l
join pgque.consumer_deployment d
    on coalesce(d.deployment, '') = l.deployment and d.location = l.location
join pgque.subscription s on s.sub_id = d.sub_id
join pgque.queue q on q.queue_id = s.sub_queue
join pgque.consumer c on c.co_id = s.sub_consumer
left join pgque.partition_slot_base p on p.sub_id = s.sub_id
cross join lateral (
    select coalesce(p.co_name, c.co_name) as co_name, not exists (
        select from unnest(l.queues, l.consumers, l.assets) a (queue, consumer, asset)
        where (a.queue, a.consumer) = (q.queue_name, coalesce(p.co_name, c.co_name))
          and coalesce(a.asset = any (d.assets), true)) as is_gone
) n
where n.is_gone
   or l.seen_at + interval '10 minutes' < clock_timestamp()
      and l.seen_at + interval '10 minutes' > s.sub_active;

-- Checks the number of dead letters and the overdue retries.
create or replace view pgque.failure_health (queue_name, check_name, status, detail) as
with open_batch as materialized (select * from pgque.open_batches())
select q.queue_name, 'dlq_health', case when d.dead_letters > 1000 then 'warning' else 'ok' end,
       case when d.dead_letters is null then 'no dead letters'
            else format('%s dead letters, the oldest %s old: look with select * from '
                        'pgque.dlq_summary(%L); then replay or purge them', d.dead_letters,
                        date_trunc('seconds', clock_timestamp() - d.oldest), q.queue_name) end
from pgque.queue q
left join (
    select l.dl_queue_id, count(*) as dead_letters, min(l.dl_time) as oldest
    from pgque.dead_letter l
    group by l.dl_queue_id
) d on d.dl_queue_id = q.queue_id
union all
select q.queue_name, 'retry_backlog',
       case when r.overdue > interval '1 hour' then 'critical'
            when r.overdue > interval '5 minutes' then 'warning'
            else 'ok' end,
       case when r.retries is null then 'no retry is due'
            else format('%s retries are due, the first since %s%s', r.retries,
                        date_trunc('milliseconds', r.overdue),
                        case when r.overdue <= interval '5 minutes' then ''
                             when q.queue_disable_insert
                             then ': the queue accepts no events (disable_insert)'
                             else ': see that pgque.maint() or maint_retry_events() is called' end)
       end
from pgque.queue q
left join (
    select e.ev_queue, count(*) as retries, clock_timestamp() - min(e.ev_retry_after) as overdue
    from pgque.retry_queue e
    where e.ev_retry_after <= clock_timestamp()
      -- As in maint_retry_events, which leaves retries of open batches.
      and not exists (select from open_batch b
                      where b.ev_owner = e.ev_owner
                        and pg_visible_in_snapshot(e.ev_txid, b.next_snapshot)
                        and not pg_visible_in_snapshot(e.ev_txid, b.last_snapshot))
    group by e.ev_queue
) r on r.ev_queue = q.queue_id;

-- The lag of a consumer is compared with the queue's rotation period, because a longer lag blocks
-- rotation. It is the age of the first event that waits, with or without a tick: at most the age of the tick
-- before it, and exact if that is long ago, because finding the first event takes time. A held batch is
-- critical, because later events wait; so is a batch that fails for 2 minutes with temporary errors. A lease
-- that expired longer ago than the idle period is a warning, because no worker has the batch.
create or replace view pgque.consumer_health (queue_name, check_name, status, detail) as
with unticked as materialized (
    select q.queue_id, q.last_event_id - q.tick_event_seq as events,
           greatest(f.since, q.tick_time) as waiting_since
    from pgque.queue_progress q
    cross join lateral (
        select case when clock_timestamp() - q.tick_time <= q.queue_rotation_period / 2 then q.tick_time
                    else pgque.first_event_time(q.queue_id, q.tick_snapshot, 0) end as since
    ) f
    where q.last_event_id > q.tick_event_seq and f.since is not null
), consumer as materialized (
    select p.sub_id, p.sub_queue, p.co_name, p.sub_active, p.sub_last_tick, p.sub_batch,
           p.lease_owner, p.lease_until, p.lease_epoch,
           q.queue_name, q.queue_rotation_period, q.queue_ticker_idle_period,
           case when p.sub_last_tick < p.newest_tick
                then date_trunc('milliseconds', coalesce(clock_timestamp() - case
                    when clock_timestamp() - p.tick_time <= q.queue_rotation_period / 2
                        then p.tick_time
                    else pgque.waiting_since(p.sub_queue, coalesce(p.sub_main, p.sub_id), p.tick_time,
                                             p.tick_snapshot, p.tick_event_seq) end, '0'))
                when p.sub_main is null
                then date_trunc('milliseconds',
                                coalesce(clock_timestamp() - u.waiting_since, '0'))
                else '0' end as lag,
           p.newest_event_seq - p.tick_event_seq
           + case when p.sub_main is null then coalesce(u.events, 0) else 0 end as pending,
           p.sub_last_tick = p.newest_tick as waits_for_tick
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    left join unticked u on u.queue_id = q.queue_id
)
select c.queue_name, format('consumer_lag:%s', c.co_name),
       case when c.lag > c.queue_rotation_period then 'critical'
            when c.lag > c.queue_rotation_period / 2 then 'warning'
            else 'ok' end,
       case when c.sub_last_tick is null then 'has no batch'
            when c.lag <= c.queue_rotation_period / 2
            then format('%s%s behind, %s events',
                        case when c.pending > 0 then 'at most ' end, c.lag, c.pending)
            when c.waits_for_tick
            then format('%s events wait for a tick, the first for %s: see ticker_running',
                        c.pending, c.lag)
            else format('%s behind, %s events, last seen %s ago: see that it runs and keeps up, or '
                        'end it with select pgque.unregister_consumer(%L, %L);', c.lag, c.pending,
                        date_trunc('seconds', clock_timestamp() - c.sub_active), c.queue_name,
                        c.co_name) end
from consumer c
union all
select c.queue_name, format('held_batch:%s', c.co_name),
       case when h.batch_id is null then 'ok' else 'critical' end,
       case when h.batch_id is null then 'no batch is held'
            else format('batch %s of "%s" is held since %s, and what follows it waits: %s',
                        h.batch_id, c.co_name, date_trunc('seconds', h.held_since), h.reason) end
from consumer c
left join pgque.held_batch h
    on h.sub_id = c.sub_id and h.batch_id = c.sub_batch and h.epoch = c.lease_epoch
       and not h.is_retried
union all
select c.queue_name, format('failing_batch:%s', c.co_name),
       case when h.batch_id is null then 'ok'
            when h.held_since > clock_timestamp() - interval '2 minutes' then 'warning'
            else 'critical' end,
       case when h.batch_id is null then 'no batch waits for a temporary failure to end'
            else format('batch %s of "%s" fails since %s and is retried until it succeeds; what '
                        'follows it waits: %s', h.batch_id, c.co_name,
                        date_trunc('seconds', h.held_since), h.reason) end
from consumer c
left join pgque.held_batch h
    on h.sub_id = c.sub_id and h.batch_id = c.sub_batch and h.is_retried
union all
select q.queue_name, 'lease_health',
       case when l.expired is null then 'ok'
            when clock_timestamp() - l.since
                 > q.queue_ticker_idle_period * 5 + interval '5 minutes' then 'critical'
            else 'warning' end,
       case when l.expired is null then 'no lease has run out'
            else format('%s: start a worker that claims it, or see why its worker stopped. If a worker '
                        'that died keeps the place of the next one, end it where it was started',
                        l.expired) end
from pgque.queue q
left join (
    select c.sub_queue, min(c.lease_until) as since,
           string_agg(format('batch %s of "%s", leased by "%s", since %s', c.sub_batch, c.co_name,
                             c.lease_owner, c.lease_until), '; ' order by c.lease_until) as expired
    from consumer c
    left join pgque.held_batch h
        on h.sub_id = c.sub_id and h.batch_id = c.sub_batch and h.epoch = c.lease_epoch
           and not h.is_retried
    where c.sub_batch is not null
      and h.batch_id is null
      and c.lease_until < clock_timestamp() - c.queue_ticker_idle_period
    group by c.sub_queue
) l on l.sub_queue = q.queue_id;
