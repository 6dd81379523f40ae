-- The metrics of queues. What a queue's consumers acked is the sum of its counters and of the events
-- before their positions (schema/counters.sql).
create or replace view pgque.queue_metric as
with figures as materialized (  -- or the labels are made for each metric
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

-- The metrics of consumers. Events without a tick are pending too, or a consumer would look idle
-- while no ticker runs. A subconsumer has no counters, and without a batch no metrics. Events of
-- a subconsumer's open batch are not finished, although the cursor of its main consumer is past
-- them. An event counts as finished once, however often it was delivered again.
create or replace view pgque.consumer_metric as
with consumer as materialized (
    select jsonb_build_object('queue', q.queue_name, 'consumer', p.co_name) as labels,
           array[extract(epoch from clock_timestamp() - p.tick_time),
                 case when p.sub_main is null
                      then coalesce(pg_sequence_last_value(q.queue_seq), 0) - p.tick_event_seq
                      else p.batch_events end,
                 n.acked + p.tick_event_seq
                 - coalesce(sum(p.batch_events) filter (where p.sub_main is not null)
                            over (partition by coalesce(p.sub_main, p.sub_id)), 0),
                 n.nacked,
                 n.dead_lettered]::numeric[] as figures
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
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

-- Returns all metrics for a polling collector, each with its labels as JSON. Counters of queues
-- have the label queue and never decrease until the queue is dropped. Metrics of consumers have the
-- labels queue and consumer, and end when the consumer is unregistered; its counts stay in the
-- queue's counters. Quantiles (label quantile) are of batches that ended in the last minutes.
-- pgque.health is each check of queue_health(): 0 ok, 1 unknown, 2 warning, 3 critical; a check of
-- the whole database has an empty label queue. See docs/observability.md.
create or replace function pgque.otel_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql security definer
set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query select * from pgque.queue_metric;
    return query select * from pgque.consumer_metric;
    return query select * from pgque.batch_metric;
    return query
    select 'pgque.health', 'gauge',
           array_position('{ok,unknown,warning,critical}', h.status)::numeric - 1,
           jsonb_build_object('queue', coalesce(h.queue_name, ''), 'check_name', h.check_name)
    from pgque.queue_health() h;
    return query
    select 'pgque.ticker.duration_seconds', 'gauge',
           coalesce(extract(epoch from max(r.tick_time) - min(r.tick_time))::numeric, 0), '{}'::jsonb
    from (
        select newest.tick_time,
               newest.tick_snapshot::text = first_value(newest.tick_snapshot::text) over (
                   order by newest.tick_time desc) as is_last_run
        from pgque.queue q
        cross join lateral (
            select * from pgque.tick t
            where t.tick_queue = q.queue_id order by t.tick_id desc limit 1
        ) newest
        where not q.queue_external_ticker
    ) r
    where r.is_last_run;
end;
$$;
