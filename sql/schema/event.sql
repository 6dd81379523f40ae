-- The shape of every event table, which create_queue copies. Nothing inherits it: to read it reads no
-- queue. pgque.event_<queue_id> holds no rows either, but its children _0, _1, _2 do: insert-only,
-- never updated or deleted, emptied by TRUNCATE.
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

-- Earlier versions had the event tables of all queues inherit it.
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
