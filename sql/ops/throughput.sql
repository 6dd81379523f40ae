-- Returns the buckets that cover a period up to now, the first one completely. They begin at multiples
-- of their size since 2000-01-01 UTC, so that two calls return the same buckets.
create or replace function pgque.time_buckets(
    i_period interval, i_bucket_size interval,
    out bucket_start timestamptz, out bucket_end timestamptz)
returns setof record
language plpgsql stable set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_now   constant timestamptz := clock_timestamp();
    v_size  interval;
begin
    if i_period is null or i_bucket_size is null or i_period <= '0' or i_bucket_size <= '0'
       or i_period > '100 years' or i_bucket_size > '100 years'
       or extract(year from i_bucket_size) <> 0 or extract(month from i_bucket_size) <> 0
       or extract(epoch from i_period) > 10000 * extract(epoch from i_bucket_size) then
        perform pgque.refuse_value(
            format('a period of %s has no buckets of %s', coalesce(i_period::text, 'null'),
                   coalesce(i_bucket_size::text, 'null')), null,
            'Give positive intervals, the bucket in days or smaller units, and at most 10,000 buckets, '
            'for example ''1 hour'' and ''5 minutes''.');
    end if;
    v_size := make_interval(secs => extract(epoch from i_bucket_size)::double precision);
    return query
    select b.at, b.at + v_size
    from generate_series(date_bin(v_size, v_now - i_period, '2000-01-01 00:00:00+00'),
                         v_now, v_size) b(at);
end;
$$;

-- Returns the events sent in each bucket of a period, and their rate per second. An event counts in the
-- bucket of its tick, or of now if it has no tick yet. Dropped ticks count by their minute, for at
-- least a day. Buckets before the oldest known tick are left out.
create or replace function pgque.throughput(
    i_queue_name text, i_period interval, i_bucket_size interval)
returns table (bucket_start timestamptz, events bigint, events_per_sec numeric)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_queue  pgque.queue := pgque.find_queue(i_queue_name);
    v_now    timestamptz := clock_timestamp();
begin
    perform pgque.check_logs_visible();
    return query
    with point as materialized (
        select h.counted_at as at, h.event_seq as seq
        from pgque.history h
        where h.queue_id = v_queue.queue_id and h.event_seq is not null
        union all
        select t.tick_time, t.tick_event_seq
        from pgque.tick t
        where t.tick_queue = v_queue.queue_id
        union all
        select v_now, coalesce(pg_sequence_last_value(v_queue.queue_seq), 0)
    ), known as (
        select case when min(p.seq) > 0 then min(p.at) else '-infinity' end as since from point p
    ), bucket as (
        select b.* from pgque.time_buckets(i_period, i_bucket_size) b
        join known k on b.bucket_end > k.since
    ), step as (
        select p.at, p.seq - lag(p.seq) over (order by p.seq, p.at) as events from point p
    ), filled as (
        select date_bin(make_interval(secs => extract(epoch from i_bucket_size)::double precision),
                        s.at, '2000-01-01 00:00:00+00') as start, sum(s.events)::bigint as events
        from step s
        where s.at <= v_now and s.events > 0
        group by 1
    )
    select b.bucket_start, coalesce(f.events, 0),
           round(coalesce(f.events, 0) / greatest(
               extract(epoch from least(b.bucket_end, v_now) - b.bucket_start)::numeric, 0.000001), 3)
    from bucket b
    left join filled f on f.start = b.bucket_start
    order by b.bucket_start;
end;
$$;

-- Returns the retries and dead letters of each bucket of a period, no matter what happened to them later.
-- Older counts are stored per minute, for at least a day; buckets before that are left out.
create or replace function pgque.error_rate(
    i_queue_name text, i_period interval, i_bucket_size interval)
returns table (bucket_start timestamptz, retries bigint, dead_letters bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_queue pgque.queue := pgque.find_queue(i_queue_name);
begin
    perform pgque.check_logs_visible();
    return query
    with bucket as materialized (
        select b.* from pgque.time_buckets(i_period, i_bucket_size) b
        where b.bucket_end > clock_timestamp() - interval '1 day'  -- as in the history
    ), failed as (
        select date_bin(make_interval(secs => extract(epoch from i_bucket_size)::double precision),
                        f.at, '2000-01-01 00:00:00+00') as start,
               sum(f.retries)::bigint as retries, sum(f.dead_letters)::bigint as dead_letters
        from (
            select h.counted_at, h.retries, h.dead_letters
            from pgque.history h
            where h.queue_id = v_queue.queue_id and h.event_seq is null
            union all
            select l.counted_at, l.nacked, l.dead_lettered
            from pgque.counter_log l
            where l.queue_id = v_queue.queue_id
        ) f (at, retries, dead_letters)
        where exists (select from bucket)
        group by 1
    )
    select b.bucket_start, coalesce(f.retries, 0), coalesce(f.dead_letters, 0)
    from bucket b
    left join failed f on f.start = b.bucket_start
    order by b.bucket_start;
end;
$$;
