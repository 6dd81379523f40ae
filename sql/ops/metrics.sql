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
    return query select * from pgque.queue_metrics();
    return query select * from pgque.consumer_metrics();
    return query select * from pgque.batch_metrics();
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

-- Returns the metrics of queues.
-- locks: none. writes: nothing.
create or replace function pgque.queue_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query
    select m.metric_name, m.metric_type, m.value, jsonb_build_object('queue', s.queue_name)
    from pgque.queue_stats() s
    join pgque.queue q on q.queue_id = s.queue_id
    left join (
        select e.queue_id, sum(e.acked) as acked, sum(e.nacked) as nacked,
               sum(e.dead_lettered) as dead_lettered
        from (
            select c.queue_id, c.acked, c.nacked, c.dead_lettered from pgque.consumer_count c
            union all
            select l.queue_id, l.acked, l.nacked, l.dead_lettered
            from pgque.counter_log l
            left join pgque.subscription_base b on b.sub_id = l.sub_id
            where b.sub_id is null
        ) e
        group by e.queue_id
    ) n on n.queue_id = s.queue_id
    cross join lateral (values
        ('pgque.queue.depth', 'gauge', s.depth::numeric),
        ('pgque.queue.oldest_message_age_seconds', 'gauge',
         coalesce(extract(epoch from s.oldest_msg_age)::numeric, 0)),
        ('pgque.queue.throughput', 'gauge', s.events_per_sec),
        ('pgque.message.sent_total', 'counter',
         coalesce(pg_sequence_last_value(q.queue_seq), 0)::numeric),
        ('pgque.message.acked_total', 'counter', coalesce(n.acked, 0)),
        ('pgque.message.nacked_total', 'counter', coalesce(n.nacked, 0)),
        ('pgque.message.dead_lettered_total', 'counter', coalesce(n.dead_lettered, 0)),
        ('pgque.message.dead_lettered', 'gauge', s.dlq_count::numeric)
    ) m (metric_name, metric_type, value);
end;
$$;

-- Returns the metrics of consumers. A subconsumer has no counters, and without a batch no metrics.
-- locks: none. writes: nothing.
create or replace function pgque.consumer_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query
    with counted as materialized (
        select * from pgque.consumer_count
    ), consumer as materialized (
        select jsonb_build_object('queue', q.queue_name, 'consumer', p.co_name) as labels,
               extract(epoch from clock_timestamp() - p.tick_time)::numeric as lag,
               p.pending_events as pending,
               n.acked, n.nacked, n.dead_lettered
        from pgque.consumer_progress p
        join pgque.queue q on q.queue_id = p.sub_queue
        left join counted n on n.sub_id = p.sub_id
    )
    select m.metric_name, m.metric_type, m.value, c.labels
    from consumer c
    cross join lateral (values
        ('pgque.consumer.lag_seconds', 'gauge', c.lag),
        ('pgque.consumer.pending_events', 'gauge', c.pending::numeric),
        ('pgque.consumer.acked_total', 'counter', c.acked::numeric),
        ('pgque.consumer.nacked_total', 'counter', c.nacked::numeric),
        ('pgque.consumer.dead_lettered_total', 'counter', c.dead_lettered::numeric)
    ) m (metric_name, metric_type, value)
    where m.value is not null;
end;
$$;

-- Returns the size and processing time of the batches that ended in the last 5 minutes, by
-- consumer.
-- locks: none. writes: nothing.
create or replace function pgque.batch_metrics()
returns table (metric_name text, metric_type text, value numeric, labels jsonb)
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return query
    select m.metric_name, 'gauge', m.percentiles[k.nr]::numeric,
           jsonb_build_object('queue', q.queue_name, 'consumer', c.co_name, 'quantile', k.quantile)
    from (
        select e.sub_id,
               percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
                   order by extract(epoch from e.ended_at - e.opened_at)) as seconds,
               percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
                   order by e.events) as sizes
        from pgque.ended_batch e
        where e.ended_at >= clock_timestamp() - interval '5 minutes'
        group by e.sub_id
    ) b
    join pgque.subscription_base s on s.sub_id = b.sub_id
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.consumer c on c.co_id = s.sub_consumer
    cross join (values (1, '0.5'), (2, '0.95'), (3, '0.99')) k (nr, quantile)
    cross join lateral (values
        ('pgque.processing_latency_seconds', b.seconds),
        ('pgque.batch.size', b.sizes)
    ) m (metric_name, percentiles);
end;
$$;
