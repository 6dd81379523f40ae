-- How far a consumer's replicas are: a run left them at stored_tick, and no event lies between that and
-- empty_to, where the next batch begins. Otherwise batches were finished without a run.
create table if not exists pgque.replica_position (
    sub_id       integer primary key references pgque.subscription_base on delete cascade,
    stored_tick  bigint not null,
    empty_to     bigint not null
) with (fillfactor = 10);

-- The tables that a consumer copies into other tables, each as its last copy found it. Written by a
-- copy, and not by the batches that follow, so it has few dead tuples.
create table if not exists pgque.replica_table (
    sub_id       integer not null references pgque.subscription_base on delete cascade,
    table_name   text not null,
    incarnation  text not null,
    copied       pg_snapshot not null,
    shape        text not null,
    primary key (sub_id, table_name)
);
-- Why its rows may differ from the table's, since when, and the tick that ends the batch since which they
-- may. Only a comparison that begins after that finds them equal, which empties doubt.
alter table pgque.replica_table
    add column if not exists doubt text,
    add column if not exists doubt_tick bigint,
    add column if not exists doubted_at timestamptz;

-- The tables of a consumer that are set apart from its batches, one row each. Either the table has a problem
-- of its own, given in reason. Then its replica has the changes up to tick_id, and the events after it
-- are kept, unless the table is to be copied: then it has no row above. Or it is being copied in
-- parts: copying shows the progress, and the copy needs the events after tick_id. reason is empty if no
-- attempt failed.
create table if not exists pgque.replica_apart (
    sub_id       integer not null references pgque.subscription_base on delete cascade,
    table_name   text not null,
    tick_id      bigint not null,
    apart_since  timestamptz not null default clock_timestamp(),
    attempts     integer not null default 1,
    retry_at     timestamptz not null default clock_timestamp() + interval '1 minute',
    reason       text not null,
    primary key (sub_id, table_name)
);
alter table pgque.replica_apart add column if not exists copying text;

-- The state of the replica of each table of a consumer. Written with the ack of each batch that changes
-- the replica, and by each comparison with the table. counted_tick is the tick at which row_count was
-- so; null if it follows each batch. batches counts those stored since the last comparison. tried_copy is
-- the copied_tick that the last attempt to compare found.
create table if not exists pgque.replica_status (
    sub_id            integer not null references pgque.subscription_base on delete cascade,
    table_name        text not null,
    location          text,
    row_count         bigint,
    counted_tick      bigint,
    stored_tick       bigint,
    stored_at         timestamptz,
    copied_tick       bigint,
    copied_at         timestamptz,
    batches           bigint not null default 0,
    verified_tick     bigint,
    verified_at       timestamptz,
    verified_problem  text,
    tried_at          timestamptz,
    tried_copy        bigint,
    unverified        text,
    primary key (sub_id, table_name)
) with (fillfactor = 50);
-- The last comparison of each part of a large table, by number.
alter table pgque.replica_status add column if not exists parts jsonb;
-- Since when the consumer no longer replicates the table, but it is still captured. Then nothing else is
-- known.
alter table pgque.replica_status add column if not exists left_at timestamptz;
