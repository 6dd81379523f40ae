-- The logs of positions and ticks have two halves each, 0 and 1. Everything is written to the
-- current half. Maintenance copies the rows that are still needed to the other half, makes that the
-- current one, and truncates the half that it left when no snapshot needs it any more. So there are
-- no dead rows, and a snapshot still finds its rows where it saw them.

-- Which half of each log is the current one, and which transaction switched to it. Only a switch
-- updates it: a REPEATABLE READ transaction that locks the row gets a serialization failure if a switch
-- happened after its snapshot. Every poll reads these two rows; an index would only make that slower.
-- Its rows are their own replica identity, without which no publication of all tables could let it be
-- updated.
create table if not exists pgque.log (
    log_name     text not null,
    half         smallint not null check (half in (0, 1)),
    switched_by  xid8 not null default pg_current_xact_id()
);

alter table pgque.log  -- version 0.3 has not
    add column if not exists switched_by xid8 not null default pg_current_xact_id();

alter table pgque.log replica identity full;

insert into pgque.log (log_name, half)
select log_name, 0
from unnest(array['tick', 'position']) log_name
where not exists (select from pgque.log);

-- The state of maintenance for each log. rotated_at is the time of the last rotation. is_copied says
-- that the other half of a log holds a copy for the next switch. patience is how long maintenance waits
-- for snapshots, the same for all.
create table if not exists pgque.log_rotation (
    log_name    text primary key,
    rotated_at  timestamptz,
    is_copied   boolean not null default false,
    patience    interval not null default '1 hour' check (patience >= '0')
);

-- Version 0.3 had these.
alter table pgque.log_rotation
    drop column if exists left_at, drop column if exists left_by, drop column if exists marked_at,
    drop column if exists holders, drop column if exists tried_at;
delete from pgque.log_rotation where log_name = 'history';

insert into pgque.log_rotation (log_name)
values ('tick'), ('position'), ('counter')
on conflict do nothing;

-- What waits until no snapshot is left from before a change (engine/rotation/snapshot_wait.sql).
-- holders are the transactions that held a snapshot when the wait began. The snapshots of standbys have
-- to be newer than marked_by, which was set at marked_at.
create table if not exists pgque.snapshot_wait (
    wait_name  text primary key,
    change     text not null,
    began_at   timestamptz not null default clock_timestamp(),
    holders    text[] not null,
    marked_by  xid8 not null default pg_current_xact_id(),
    marked_at  timestamptz not null default clock_timestamp()
);
