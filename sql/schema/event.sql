-- The shape of every event table. pgque.event_<queue_id> inherits it, and that table's children
-- _0, _1, _2 hold the rows: insert-only, never updated or deleted, emptied by TRUNCATE.
-- ev_owner, if set, limits an event to the subscription of that id (retries and replays).
create table if not exists pgque.event_template (
    ev_id      bigint not null,
    ev_time    timestamptz not null,
    ev_txid    xid8 not null,
    ev_owner   integer,
    ev_retry   integer,
    ev_type    text,
    ev_data    text,
    ev_extra1  text,
    ev_extra2  text,
    ev_extra3  text,
    ev_extra4  text
);

-- What receive() returns and nack() takes back: an event as applications see it.
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
