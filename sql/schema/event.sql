-- The shape of every event table; create_queue copies it. No table inherits it, so reading it reads
-- no queue. pgque.event_<queue_id> holds no rows either; its children _0, _1 and _2 do. They are
-- insert-only: rows are never updated or deleted, and TRUNCATE empties the tables.
-- ev_owner, if set, limits an event to the subscription with that id (retries and replays).
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

-- In earlier versions the event tables of all queues inherited it.
do $$
declare
    v_table regclass;
begin
    for v_table in
        select i.inhrelid from pg_inherits i where i.inhparent = 'pgque.event_template'::regclass
    loop
        execute format(  -- quoted: by regclass
            'alter table %s no inherit pgque.event_template', v_table);
    end loop;
end;
$$;

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
