-- The tick up to which a queue's events could be truncated when rotation last looked. When no snapshot
-- is left from before that (snapshot_wait, "queue <id>"), every snapshot sees the events up to that
-- tick as consumed.
create table if not exists pgque.rotation_floor (
    queue_id  integer primary key references pgque.queue on delete cascade,
    tick_id   bigint not null,
    snapshot  pg_snapshot not null
);

-- Version 0.3 had these.
alter table pgque.rotation_floor
    drop column if exists noted_at, drop column if exists noted_by, drop column if exists holders;
