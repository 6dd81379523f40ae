-- Queues whose tables are captured from the WAL. The events of all transactions that committed before lsn
-- are in the queue; null before the first ones. The slot is never ahead of it.
create table if not exists pgque.relay (
    queue_id  integer primary key constraint drop_the_relay_before references pgque.queue,
    slot      text not null,
    lsn       pg_lsn
) with (fillfactor = 10);
