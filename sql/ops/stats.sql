-- Raises an error if the transaction's snapshot is older than a compaction, because it would see zeros.
-- Costs nothing in READ COMMITTED.
create or replace function pgque.check_logs_visible()
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        return;
    end if;
    perform pgque.check_positions_visible();
    if exists (select from pgque.queue_progress q where q.tick_id is null) then
        raise exception 'ticks are not in this transaction''s snapshot'
            using errcode = 'serialization_failure',
                  hint = 'The transaction began before they were compacted: roll back and try '
                         'again.';
    end if;
end;
$$;

-- Returns when the first event that came after a tick with this snapshot was sent; null if there is none, or
-- the queue was dropped. The first event has the lowest transaction id, which the index finds. With an owner
-- other than 0, only events count that were redelivered to it; with 0, only other events. An empty table is
-- not planned for. The block ends with an error to release its locks, because those of a thousand queues
-- fill the lock table.
create or replace function pgque.first_event_time(
    i_queue_id integer, i_after pg_snapshot, i_owner integer)
returns timestamptz
language plpgsql strict set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_times  text;
    v_first  timestamptz;
begin
    select string_agg(format('(select ev_time from pgque.event_%s_%s where %s and coalesce(ev_owner, 0) = %s '
                             'order by ev_txid limit 1)', i_queue_id, nr, c, i_owner), ', ')
    into v_times
    from generate_series(0, 2) nr
    cross join unnest(array[
        format('ev_txid >= %L', pg_snapshot_xmax(i_after)),
        (select format('ev_txid = any (%L::xid8[])', array_agg(x))
         from pg_snapshot_xip(i_after) x having count(*) > 0)]) c
    where c is not null
      and pg_relation_size(to_regclass(format('pgque.event_%s_%s', i_queue_id, nr))) > 0;
    execute format('select least(%s)', coalesce(v_times, 'null')) into v_first;  -- quoted: made above
    raise no_data_found;
exception
    when no_data_found or undefined_table then
        return v_first;
end;
$$;

-- Returns since when the first unfinished event of a subscription at a tick has waited; null if none waits.
-- A redelivered event has its old time: it waits since the last tick that does not contain it.
create or replace function pgque.waiting_since(
    i_queue_id integer, i_sub_id integer, i_tick_time timestamptz, i_snapshot pg_snapshot,
    i_seq bigint)
returns timestamptz
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_since timestamptz := pgque.first_event_time(i_queue_id, i_snapshot, 0);
begin
    if v_since is null and pgque.first_event_time(i_queue_id, i_snapshot, i_sub_id) is not null then
        select max(t.tick_time) into v_since
        from pgque.tick t
        where t.tick_queue = i_queue_id and t.tick_event_seq = i_seq;
    end if;
    return case when v_since is not null then greatest(v_since, i_tick_time) end;
end;
$$;

-- The events that wait for each consumer: their number, including those without a tick, and since when the
-- first one has waited. For a subconsumer, only its batch counts. Finding the first event takes time, so for
-- a consumer at a tick of the last 10 seconds it is that tick's time; and if no id was given out since the
-- tick and its snapshot had no transaction in progress, there is none.
create or replace view pgque.consumer_wait as
select p.sub_id, q.queue_name, p.co_name,
       case when p.sub_main is null
            then coalesce(pg_sequence_last_value(q.queue_seq), 0) - p.tick_event_seq
            else p.batch_events end as events,
       case when coalesce(pg_sequence_last_value(q.queue_seq), 0) = p.tick_event_seq
                 and pg_snapshot_xmin(p.tick_snapshot) = pg_snapshot_xmax(p.tick_snapshot) then null
            when pg_sequence_last_value(q.queue_seq) > p.tick_event_seq
                 and p.tick_time >= clock_timestamp() - interval '10 seconds' then p.tick_time
            else pgque.waiting_since(p.sub_queue, coalesce(p.sub_main, p.sub_id), p.tick_time,
                                     p.tick_snapshot, p.tick_event_seq) end as since
from pgque.consumer_progress p
join pgque.queue q on q.queue_id = p.sub_queue;

-- The same for callers, for one queue or all.
create or replace function pgque.consumer_waits(
    i_queue_name text, out queue_name text, out consumer_name text, out events bigint,
    out waiting_since timestamptz)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    if i_queue_name is not null then
        perform pgque.find_queue(i_queue_name);
    end if;
    return query
    select w.queue_name, w.co_name, w.events, w.since
    from pgque.consumer_wait w
    where i_queue_name is null or w.queue_name = i_queue_name;
end;
$$;

-- The figures of each queue, for queue_stats and metrics. depth is the number of events that the
-- slowest consumer has not finished, including events without a tick; it is 0 without consumers.
-- oldest_time is when the oldest of these events was sent. finished counts the events before the
-- positions of all consumers, less those in open batches of subconsumers.
create or replace view pgque.queue_figures as
select q.queue_id, q.queue_name, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time,
       q.queue_ticker_paused, q.tick_id, q.tick_time, q.last_event_id,
       coalesce(q.last_event_id - c.event_seq, 0) as depth,
       case when q.last_event_id > c.event_seq
            then pgque.first_event_time(q.queue_id, oldest.tick_snapshot, 0) end as oldest_time,
       coalesce(c.consumers, 0) as consumers,
       coalesce(c.finished, 0) as finished,
       coalesce(round((q.tick_event_seq - before.tick_event_seq)
                      / nullif(extract(epoch from q.tick_time - before.tick_time), 0)::numeric, 3), 0)
       as events_per_sec,
       coalesce(d.dead_letters, 0) as dead_letters
from pgque.queue_progress q
left join (
    select s.sub_queue, min(t.tick_event_seq) as event_seq,
           (count(*) filter (where s.sub_main is null))::integer as consumers,
           sum(case when s.sub_main is null then t.tick_event_seq
                    else t.tick_event_seq - batch_end.tick_event_seq end) as finished
    from pgque.subscription s
    left join lateral (
        select x.tick_event_seq from pgque.tick x
        where x.tick_queue = s.sub_queue and x.tick_id = s.sub_last_tick limit 1
    ) t on true
    left join lateral (
        select x.tick_event_seq from pgque.tick x
        where s.sub_main is not null
          and x.tick_queue = s.sub_queue and x.tick_id = s.sub_next_tick limit 1
    ) batch_end on true
    group by s.sub_queue
) c on c.sub_queue = q.queue_id
left join lateral (
    select t.tick_snapshot from pgque.tick t
    where t.tick_queue = q.queue_id and t.tick_event_seq = c.event_seq
    order by t.tick_id desc limit 1
) oldest on true
left join lateral (
    select t.tick_time, t.tick_event_seq from pgque.tick t
    where t.tick_queue = q.queue_id and t.tick_id < q.tick_id
    order by t.tick_id desc limit 1
) before on true
left join (
    select l.dl_queue_id, count(*) as dead_letters
    from pgque.dead_letter l
    group by l.dl_queue_id
) d on d.dl_queue_id = q.queue_id;

-- Returns the key figures of each queue. oldest_msg_age is the age of the oldest event that the slowest
-- consumer has not finished, and null if there is none. Subconsumers do not count as consumers.
create or replace function pgque.queue_stats()
returns table (
    queue_name text, queue_id integer, depth bigint, oldest_msg_age interval, consumers integer,
    events_per_sec numeric, cur_table integer, rotation_age interval, rotation_period interval,
    ticker_paused boolean, last_tick_time timestamptz, last_tick_id bigint, dlq_count bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query
    select q.queue_name, q.queue_id, q.depth, clock_timestamp() - q.oldest_time, q.consumers,
           q.events_per_sec, q.queue_cur_table, clock_timestamp() - q.queue_switch_time,
           q.queue_rotation_period, q.queue_ticker_paused, q.tick_time, q.tick_id, q.dead_letters
    from pgque.queue_figures q
    order by q.queue_name;
end;
$$;

-- Returns the queues with events that are in no tick yet: how many at most, and since when the first one
-- waits for a tick. A redelivered event is not counted. Without a queue name, it returns all such queues.
create or replace function pgque.unticked_events(
    i_queue_name text, out queue_name text, out waiting_since timestamptz, out events bigint)
returns setof record
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    if i_queue_name is not null then
        perform pgque.find_queue(i_queue_name);
    end if;
    return query
    -- An event of a transaction that ended after the tick may have been sent before it.
    select q.queue_name, greatest(f.since, q.tick_time), q.last_event_id - q.tick_event_seq
    from pgque.queue_progress q
    cross join lateral (select pgque.first_event_time(q.queue_id, q.tick_snapshot, 0)) f (since)
    where (i_queue_name is null or q.queue_name = i_queue_name)
      and q.last_event_id > q.tick_event_seq
      and f.since is not null
    order by q.queue_name;
end;
$$;

-- Returns each consumer: the age of the tick at its position, the events from there to the last tick,
-- and its open batch. `last_batch_start` is when that batch was opened; without a batch, when the
-- consumer was last active. For a subconsumer, only its batch counts.
create or replace function pgque.consumer_stats()
returns table (
    queue_name text, consumer_name text, lag interval, pending_events bigint,
    last_batch_start timestamptz, batch_active boolean, batch_id bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
begin
    perform pgque.check_logs_visible();
    return query
    select q.queue_name, p.co_name, clock_timestamp() - p.tick_time,
           p.pending_events,
           coalesce(p.opened_at, p.sub_active),
           p.sub_batch is not null, p.sub_batch
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    order by q.queue_name, p.co_name;
end;
$$;

-- Returns the open batches of a queue, the longest open first. batch_age is a lower bound: the time
-- since the oldest position of the batch that compaction has left. A queue that does not exist has
-- none.
create or replace function pgque.in_flight(i_queue_name text)
returns table (
    consumer_name text, batch_id bigint, batch_age interval, estimated_events bigint)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set jit = off
as $$
declare
    v_queue pgque.queue := pgque.look_for_queue(i_queue_name);
begin
    perform pgque.check_logs_visible();
    return query
    select p.co_name, p.sub_batch, clock_timestamp() - p.opened_at, p.batch_events
    from pgque.consumer_progress p
    where p.sub_queue = v_queue.queue_id
      and p.sub_batch is not null
    order by p.opened_at, p.co_name;
end;
$$;

-- Returns the consumers that make no progress: those with a batch open for longer than the threshold,
-- or with ticks waiting and no activity for this time.
create or replace function pgque.stuck_consumers(i_threshold interval default '1 hour')
returns table (queue_name text, consumer_name text, lag interval, last_active timestamptz)
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
set jit = off
as $$
begin
    if i_threshold is null or i_threshold < '0' then
        perform pgque.refuse_value('the threshold cannot be %s', i_threshold::text,
                                   'Give an interval of 0 or more; the default is 1 hour.');
    end if;
    perform pgque.check_logs_visible();
    return query
    select q.queue_name, p.co_name, clock_timestamp() - p.tick_time, p.sub_active
    from pgque.consumer_progress p
    join pgque.queue q on q.queue_id = p.sub_queue
    where case when p.sub_batch is null
               then p.sub_last_tick < p.newest_tick and p.sub_active <= clock_timestamp() - i_threshold
               else p.opened_at <= clock_timestamp() - i_threshold end
    order by p.tick_time, q.queue_name, p.co_name;
end;
$$;
