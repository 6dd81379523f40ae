-- Batches that are not retried automatically, with the reason and the way out. A row counts only
-- while its batch is open under its epoch, so a claim or an ack ends the hold and writes nothing
-- here.
create table if not exists pgque.held_batch (
    sub_id      integer primary key references pgque.subscription_base on delete cascade,
    batch_id    bigint not null,
    epoch       bigint not null,
    held_since  timestamptz not null default clock_timestamp(),
    reason      text not null
);
