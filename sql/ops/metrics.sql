-- The metrics of queues. What a queue's consumers acked is the sum of its counters and of the events
-- before their positions (schema/counters.sql).
create or replace view pgque.queue_metric as
with figures as materialized (  -- or the labels are made for each metric
    select q.*, coalesce(n.acked + q.finished, 0) as acked, coalesce(n.nacked, 0) as nacked,
           coalesce(n.dead_lettered, 0) as dead_lettered,
           jsonb_build_object('queue', q.queue_name) as labels
    from pgque.queue_figures q
    left join (
        select c.queue_id, sum(c.acked) as acked, sum(c.nacked) as nacked,
               sum(c.dead_lettered) as dead_lettered
        from pgque.counter_log c
        group by c.queue_id
    ) n on n.queue_id = q.queue_id
)
select m.metric_name, m.metric_type, m.value, f.labels
from figures f
cross join lateral (values
    ('pgque.queue.depth', 'gauge', f.depth::numeric),
    ('pgque.queue.oldest_message_age_seconds', 'gauge',
     coalesce(extract(epoch from clock_timestamp() - f.oldest_time)::numeric, 0)),
    ('pgque.queue.throughput', 'gauge', f.events_per_sec),
    ('pgque.message.sent_total', 'counter', f.last_event_id::numeric),
    ('pgque.message.acked_total', 'counter', f.acked),
    ('pgque.message.nacked_total', 'counter', f.nacked),
    ('pgque.message.dead_lettered_total', 'counter', f.dead_lettered),
    ('pgque.message.dead_lettered', 'gauge', f.dead_letters::numeric)
) m (metric_name, metric_type, value);

-- The metrics of consumers. A subconsumer has no counters, and without a batch no metrics. Events of
-- a subconsumer's open batch are not finished, although the cursor of its main consumer is past
-- them. An event counts as finished once, however often it was delivered again.
create or replace view pgque.consumer_metric as
with consumer as materialized (
    select jsonb_build_object('queue', q.queue_name, 'consumer', p.co_name) as labels,
           extract(epoch from clock_timestamp() - p.tick_time)::numeric as lag,
           p.pending_events as pending,
           n.acked + p.tick_event_seq
           - coalesce(sum(p.batch_events) filter (where p.sub_main is not null)
                      over (partition by coalesce(p.sub_main, p.sub_id)), 0) as acked,
           n.nacked, n.dead_lettered
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    left join (
        select c.sub_id, sum(c.acked) as acked, sum(c.nacked) as nacked,
               sum(c.dead_lettered) as dead_lettered
        from pgque.counter_log c
        group by c.sub_id
    ) n on n.sub_id = p.sub_id and p.sub_main is null
)
select m.metric_name, m.metric_type, m.value, c.labels
from consumer c
cross join lateral (values
    ('pgque.consumer.lag_seconds', 'gauge', c.lag),
    ('pgque.consumer.pending_events', 'gauge', c.pending::numeric),
    ('pgque.consumer.acked_total', 'counter', c.acked),
    ('pgque.consumer.nacked_total', 'counter', c.nacked),
    ('pgque.consumer.dead_lettered_total', 'counter', c.dead_lettered)
) m (metric_name, metric_type, value)
where m.value is not null;

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
    select b.seconds[k.nr] as seconds, b.sizes[k.nr] as size,
           jsonb_build_object('queue', q.queue_name, 'consumer', c.co_name, 'quantile', k.quantile)
           as labels
    from batches b
    join pgque.subscription_base s on s.sub_id = b.sub_id
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.consumer c on c.co_id = s.sub_consumer
    cross join (values (1, '0.5'), (2, '0.95'), (3, '0.99')) k (nr, quantile)
)
select m.metric_name, 'gauge' as metric_type, m.value::numeric as value, q.labels
from quantiles q
cross join lateral (values
    ('pgque.processing_latency_seconds', q.seconds),
    ('pgque.batch.size', q.size)
) m (metric_name, value);

-- Returns all metrics for a polling collector, each with its labels as JSON. Counters of queues
-- have the label queue and never decrease until the queue is dropped. Metrics of consumers have the
-- labels queue and consumer, and end when the consumer is unregistered; its counts stay in the
-- queue's counters. Quantiles (label quantile) are of batches that ended in the last minutes. See
-- docs/observability.md.
-- locks: none. writes: nothing.
create or replace function pgque.otel_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query select * from pgque.queue_metric;
    return query select * from pgque.consumer_metric;
    return query select * from pgque.batch_metric;
    return query
    select 'pgque.ticker.duration_seconds', 'gauge',
           coalesce(extract(epoch from max(r.tick_time) - min(r.tick_time))::numeric, 0), '{}'::jsonb
    from (
        select q.tick_time,
               q.tick_snapshot::text = first_value(q.tick_snapshot::text) over (
                   order by q.tick_time desc) as is_last_run
        from pgque.queue_progress q
        where not q.queue_external_ticker
    ) r
    where r.is_last_run;
end;
$$;
