-- Counts that cannot be derived from other tables. Append-only; the sums are the counts. A position
-- that moves without finishing anything (registration, a move by hand, unregistration) adds a row
-- with the difference of event ids. So what a consumer finished is always the sum of its rows plus
-- the event id at its position, and finishing a batch writes nothing here. Compaction adds rows up
-- (history.sql). The row of queue 0 always exists; it shows whether a snapshot is older than a
-- compaction.
-- sub_id is null for what ended registrations left behind. No autovacuum: see pgque.tick_log.
create table if not exists pgque.counter_log (
    queue_id       integer not null,
    sub_id         integer,
    counted_at     timestamptz not null default clock_timestamp(),
    acked          bigint not null default 0,
    nacked         bigint not null default 0,
    dead_lettered  bigint not null default 0
) with (autovacuum_enabled = false);

-- The data for throughput and error rates, written by compaction: for each queue and minute in
-- which something happened, the last tick's event id, or the number of retries and dead letters.
-- Append-only, with a row of queue 0 as in pgque.counter_log.
create table if not exists pgque.history (
    queue_id      integer not null,
    counted_at    timestamptz not null,
    event_seq     bigint,
    retries       bigint,
    dead_letters  bigint
) with (autovacuum_enabled = false);

create index if not exists history_queue_idx on pgque.history (queue_id, counted_at);
create index if not exists history_time_idx on pgque.history (counted_at);

-- The first installation counts consumers from their present positions, and starts the count of
-- dead letters with the present ones.
insert into pgque.counter_log (queue_id, sub_id, counted_at, acked, dead_lettered)
select l.queue_id, l.sub_id, l.counted_at, l.acked, l.dead_lettered
from (
    select 0, null::integer, 'epoch'::timestamptz, 0::bigint, 0::bigint
    union all
    select s.sub_queue, s.sub_id, 'epoch', -t.tick_event_seq, 0
    from pgque.subscription s
    join pgque.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
    where s.sub_main is null
    union all
    select d.dl_queue_id, s.sub_id, date_trunc('minute', d.dl_time), 0, count(*)
    from pgque.dead_letter d
    left join pgque.subscription_base s
           on s.sub_queue = d.dl_queue_id and s.sub_consumer = d.dl_consumer_id
    group by 1, 2, 3
) l (queue_id, sub_id, counted_at, acked, dead_lettered)
where not exists (select from pgque.counter_log);

insert into pgque.history (queue_id, counted_at)
select 0, 'epoch'
where not exists (select from pgque.history);
