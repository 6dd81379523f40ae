-- The columns of an event. This table is empty, and no table inherits it. ev_owner, if set, limits an
-- event to the subscription with that id (retries and replays).
create table if not exists pgque.event_template (
    ev_id      bigint not null,
    ev_time    timestamptz not null default now(),
    ev_txid    xid8 not null default pg_current_xact_id(),
    ev_owner   integer,
    ev_retry   integer,
    ev_type    text,
    ev_data    text,
    ev_extra1  text,
    ev_extra2  text,
    ev_extra3  text,
    ev_extra4  text
);

-- Producers insert into this table, by one statement with a cached plan for all queues, and its
-- partitions keep the events. ev_table = 4 * queue_id + child names the event table of a row. There are
-- three levels, so that no level has many partitions, which a session loads at its first insert:
-- event_group_<n> has 64 queues, event_<queue_id> is one of them, and its children _0, _1 and _2 hold
-- the rows. They are insert-only: rows are never updated or deleted, and TRUNCATE empties the tables.
-- Nothing reads this table or a group, because they have the events of many queues.
create table if not exists pgque.event (
    like pgque.event_template including defaults,
    ev_table  integer not null
) partition by range (ev_table);

-- What receive() returns and nack() takes: an event as applications see it.
do $$
begin
    if to_regtype('pgque.message') is null then
        create type pgque.message as (
            msg_id       bigint,
            batch_id     bigint,
            type         text,
            payload      text,
            retry_count  integer,
            created_at   timestamptz,
            extra1       text,
            extra2       text,
            extra3       text,
            extra4       text
        );
    end if;
end;
$$;
