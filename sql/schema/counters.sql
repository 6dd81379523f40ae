-- Counts that cannot be derived from other tables; the sums are the counts. A position that moves
-- without finishing anything (registration, a move by hand, unregistration) adds a row with the
-- difference of event ids. So what a consumer finished is always the sum of its rows plus the event id
-- at its position, and finishing a batch writes nothing here. Compaction adds rows up (history.sql).
-- sub_id is null for the counts of ended registrations.
create table if not exists pgque.counter_log (
    queue_id       integer not null,
    sub_id         integer,
    counted_at     timestamptz not null default clock_timestamp(),
    acked          bigint not null default 0,
    nacked         bigint not null default 0,
    dead_lettered  bigint not null default 0
);

-- The data for throughput and error rates, written by compaction: for each queue and minute in which
-- something happened, the last tick's event id, or the number of retries and dead letters.
create table if not exists pgque.history (
    queue_id      integer not null,
    counted_at    timestamptz not null,
    event_seq     bigint,
    retries       bigint,
    dead_letters  bigint
);

-- Version 0.3 truncated both, so autovacuum was off. Without a replica identity, no publication of all
-- tables would let rows be deleted.
alter table pgque.counter_log reset (autovacuum_enabled), replica identity full;
alter table pgque.history reset (autovacuum_enabled), replica identity full;

create index if not exists history_queue_idx on pgque.history (queue_id, counted_at);
create index if not exists history_time_idx on pgque.history (counted_at);
