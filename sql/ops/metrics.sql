-- The metrics of queues. What a queue's consumers acked is the sum of its counters and of the events
-- before their positions (schema/counters.sql).
create or replace view pgque.queue_metric as
with figures as materialized (  -- otherwise the labels are computed for each metric
    select jsonb_build_object('queue', q.queue_name) as labels,
           array[q.depth,
                 coalesce(extract(epoch from clock_timestamp() - q.oldest_time), 0),
                 q.events_per_sec,
                 q.last_event_id,
                 coalesce(n.acked + q.finished, 0),
                 coalesce(n.nacked, 0),
                 coalesce(n.dead_lettered, 0),
                 q.dead_letters,
                 extract(epoch from clock_timestamp() - q.tick_time)]::numeric[] as figures
    from pgque.queue_figures q
    left join (
        select c.queue_id, sum(c.acked) as acked, sum(c.nacked) as nacked,
               sum(c.dead_lettered) as dead_lettered
        from pgque.counter_log c
        group by c.queue_id
    ) n on n.queue_id = q.queue_id
)
select m.metric_name, m.metric_type, f.figures[m.nr] as value, f.labels
from figures f
cross join (values
    (1, 'pgque.queue.depth', 'gauge'),
    (2, 'pgque.queue.oldest_message_age_seconds', 'gauge'),
    (3, 'pgque.queue.throughput', 'gauge'),
    (4, 'pgque.message.sent_total', 'counter'),
    (5, 'pgque.message.acked_total', 'counter'),
    (6, 'pgque.message.nacked_total', 'counter'),
    (7, 'pgque.message.dead_lettered_total', 'counter'),
    (8, 'pgque.message.dead_lettered', 'gauge'),
    (9, 'pgque.queue.last_tick_age_seconds', 'gauge')
) m (nr, metric_name, metric_type)
where f.figures[m.nr] is not null;

-- The metrics of consumers. Events without a tick are pending too; otherwise a consumer would look idle
-- while no ticker runs. The lag is the age of the first event that waits. A subconsumer has no counters, and
-- no metrics without a batch; events of its open batch are not finished, although the cursor of its main
-- consumer is past them. A redelivered event counts as finished only once.
create or replace view pgque.consumer_metric as
with consumer as materialized (
    select jsonb_build_object('queue', q.queue_name, 'consumer', p.co_name) as labels,
           array[case when p.tick_time is not null
                      then coalesce(extract(epoch from clock_timestamp() - w.since), 0) end,
                 w.events,
                 n.acked + p.tick_event_seq
                 - coalesce(sum(p.batch_events) filter (where p.sub_main is not null)
                            over (partition by coalesce(p.sub_main, p.sub_id)), 0),
                 n.nacked,
                 n.dead_lettered]::numeric[] as figures
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    join pgque.consumer_wait w on w.sub_id = p.sub_id
    left join (
        select c.sub_id, sum(c.acked) as acked, sum(c.nacked) as nacked,
               sum(c.dead_lettered) as dead_lettered
        from pgque.counter_log c
        group by c.sub_id
    ) n on n.sub_id = p.sub_id and p.sub_main is null
)
select m.metric_name, m.metric_type, c.figures[m.nr] as value, c.labels
from consumer c
cross join (values
    (1, 'pgque.consumer.lag_seconds', 'gauge'),
    (2, 'pgque.consumer.pending_events', 'gauge'),
    (3, 'pgque.consumer.acked_total', 'counter'),
    (4, 'pgque.consumer.nacked_total', 'counter'),
    (5, 'pgque.consumer.dead_lettered_total', 'counter')
) m (nr, metric_name, metric_type)
where c.figures[m.nr] is not null;

-- The batches whose opening and end are both in the position log, with their consumers. A batch that
-- ended because the consumer was moved is not listed. If another subconsumer took over a dead one's
-- batch, the batch ended for the dead one. Compaction empties the log, so this covers minutes on a busy
-- database and hours on a quiet one.
create or replace view pgque.ended_batch as
select s.sub_queue as queue_id,
       coalesce(s.sub_main, s.sub_id) as sub_id,
       p.sub_batch as batch_id,
       p.opened_at,
       p.ended_at,
       e.tick_time,
       e.tick_event_seq - b.tick_event_seq as events
from (
    select l.sub_id, l.sub_batch, l.sub_last_tick, l.sub_next_tick,
           min(l.sub_active) over (partition by l.sub_id, l.sub_batch) as opened_at,
           lead(l.sub_active) over w as ended_at,
           lead(l.sub_batch) over w as batch_after,
           lead(l.sub_last_tick) over w as tick_after
    from pgque.position_log l
    window w as (partition by l.sub_id order by l.pos_seq)
) p
join pgque.subscription_base s on s.sub_id = p.sub_id
cross join lateral (
    select t.tick_event_seq from pgque.tick t
    where t.tick_queue = s.sub_queue and t.tick_id = p.sub_last_tick limit 1
) b
cross join lateral (
    select t.tick_time, t.tick_event_seq from pgque.tick t
    where t.tick_queue = s.sub_queue and t.tick_id = p.sub_next_tick limit 1
) e
where p.sub_batch is not null
  and p.batch_after is null
  and p.ended_at is not null
  and (s.sub_main is not null or p.tick_after = p.sub_next_tick);

-- The size and processing time of the batches that ended in the last 5 minutes, by consumer.
create or replace view pgque.batch_metric as
with batches as (
    select e.sub_id,
           percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
               order by extract(epoch from e.ended_at - e.opened_at)) as seconds,
           percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
               order by e.events) as sizes
    from pgque.ended_batch e
    where e.ended_at >= clock_timestamp() - interval '5 minutes'
    group by e.sub_id
), quantiles as materialized (
    select array[b.seconds[k.nr], b.sizes[k.nr]]::numeric[] as figures,
           jsonb_build_object('queue', q.queue_name, 'consumer', c.co_name, 'quantile', k.quantile)
           as labels
    from batches b
    join pgque.subscription_base s on s.sub_id = b.sub_id
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.consumer c on c.co_id = s.sub_consumer
    cross join (values (1, '0.5'), (2, '0.95'), (3, '0.99')) k (nr, quantile)
)
select m.metric_name, 'gauge' as metric_type, q.figures[m.nr] as value, q.labels
from quantiles q
cross join (values
    (1, 'pgque.processing_latency_seconds'),
    (2, 'pgque.batch.size')
) m (nr, metric_name);

-- Returns all metrics for a polling collector, each with its labels as JSON (docs/observability.md).
-- Counters of queues have the label queue and never decrease until the queue is dropped. Metrics of
-- consumers have the labels queue and consumer, and end when the consumer is unregistered; its counts
-- stay in the queue's counters. Quantiles are of batches that ended in the last minutes. pgque.health
-- is each check of queue_health(): 0 ok, 2 warning, 3 critical.
create or replace function pgque.otel_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query select * from pgque.queue_metric;
    return query select * from pgque.consumer_metric;
    return query select * from pgque.batch_metric;
    return query select * from pgque.replica_metric;
    return query
    select 'pgque.relay.held_bytes', 'gauge', r.held_bytes::numeric, jsonb_build_object('queue', r.queue_name)
    from pgque.relays() r
    where r.held_bytes is not null;
    return query
    select 'pgque.health', 'gauge',
           array_position('{ok,unknown,warning,critical}', h.status)::numeric - 1,
           jsonb_build_object('queue', coalesce(h.queue_name, ''), 'check_name', h.check_name)
    from pgque.queue_health() h;
end;
$$;
