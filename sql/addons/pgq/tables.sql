-- The limits of queues that have one. Producers look at it for every event.
create table if not exists pgq.queue_extra (
    queue_id      integer primary key references pgque.queue on delete cascade,
    per_tx_limit  integer
);

-- How far consumers of queues in other databases have applied them in this one. The rows are updated in
-- place: pages have room for it, so that dead rows are removed as soon as the page is full.
create table if not exists pgq_ext.completed_tick (
    consumer_id     text not null,
    subconsumer_id  text not null default '',
    last_tick_id    bigint not null,
    primary key (consumer_id, subconsumer_id)
) with (fillfactor = 20);

create table if not exists pgq_ext.completed_batch (
    consumer_id     text not null,
    subconsumer_id  text not null default '',
    last_batch_id   bigint not null,
    primary key (consumer_id, subconsumer_id)
) with (fillfactor = 20);

-- The events of the current batch that a consumer applied one by one, and which batch that is.
create table if not exists pgq_ext.completed_event (
    consumer_id     text not null,
    subconsumer_id  text not null default '',
    batch_id        bigint not null,
    event_id        bigint not null,
    primary key (consumer_id, subconsumer_id, batch_id, event_id)
);

create table if not exists pgq_ext.partial_batch (
    consumer_id     text not null,
    subconsumer_id  text not null default '',
    cur_batch_id    bigint not null,
    primary key (consumer_id, subconsumer_id)
) with (fillfactor = 20);
