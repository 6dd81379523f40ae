-- The tick up to which a queue's events could be truncated when rotation last looked, and the
-- transactions that held a snapshot then. When these have ended, every snapshot sees the events up
-- to that tick as consumed.
create table if not exists pgque.rotation_floor (
    queue_id  integer primary key references pgque.queue on delete cascade,
    tick_id   bigint not null,
    snapshot  pg_snapshot not null,
    noted_at  timestamptz not null,
    noted_by  xid8 not null,
    holders   text[] not null
);
