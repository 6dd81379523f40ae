-- Batches that are not retried automatically, with the reason and what to do. A row counts only while
-- its batch is open under its epoch, so a claim or an ack ends the hold and writes nothing here. Batches
-- that are retried until they succeed (is_retried) have failed since then, and count until they are finished.
create table if not exists pgque.held_batch (
    sub_id      integer primary key references pgque.subscription_base on delete cascade,
    batch_id    bigint not null,
    epoch       bigint not null,
    held_since  timestamptz not null default clock_timestamp(),
    reason      text not null,
    is_retried  boolean not null default false
);
alter table pgque.held_batch add column if not exists is_retried boolean not null default false;

-- Events of open batches that are dead letters before their batch is finished: every read of the batch
-- leaves them out (engine/batches/set_aside.sql). A row counts only while its batch is open, so an ack
-- writes nothing here. It does not depend on the dead letters, which may be replayed or purged first.
-- epoch is the consumer's epoch since the last of them was set aside.
create table if not exists pgque.set_aside (
    sub_id    integer primary key references pgque.subscription_base on delete cascade,
    batch_id  bigint not null,
    epoch     bigint not null,
    ev_ids    bigint[] not null
);
