-- Partitioned consumers: the events of a queue are divided by key among n slots. Each slot is a
-- subscription of its own, named consumer#slot/n, with its own cursor; see docs/partitions.md.

-- What 0.3 had and this version has not.
do $$
begin
    if exists (select from pg_attribute a
               where a.attrelid = to_regclass('pgque.partition_consumer')
                 and a.attname = 'on_failure' and not a.attisdropped) then
        drop view pgque.partition_slot_status, pgque.partition_slot, pgque.slot_state;
        drop view if exists pgque.slot;
        alter table pgque.partition_consumer
            drop column on_failure,
            add column change_tick bigint,
            add column change_asked_at timestamptz;
    end if;
end;
$$;

-- How many slots a consumer has. While another number is requested (repartition.sql), change_tick is the
-- tick at which the slots stop.
create table if not exists pgque.partition_consumer (
    queue_id         integer not null references pgque.queue on delete cascade,
    co_name          text not null check (co_name <> ''),
    n                integer not null check (n between 1 and 256),
    change_tick      bigint,
    change_asked_at  timestamptz,
    primary key (queue_id, co_name)
);

-- The first subscription creates all n slots at one tick, so that no event is lost between them. Slots
-- without a subscription keep that position.
create table if not exists pgque.partition_slot_base (
    sub_id         integer primary key references pgque.subscription_base on delete cascade,
    queue_id       integer not null,
    co_name        text not null,
    slot           integer not null check (slot >= 0),
    is_subscribed  boolean not null default false,
    unique (queue_id, co_name, slot),
    foreign key (queue_id, co_name) references pgque.partition_consumer
);

-- What does not change while a slot is read.
create or replace view pgque.slot as
select q.queue_name, c.queue_id, c.co_name, b.slot, c.n, b.is_subscribed, b.sub_id
from pgque.partition_consumer c
join pgque.queue q on q.queue_id = c.queue_id
join pgque.partition_slot_base b on b.queue_id = c.queue_id and b.co_name = c.co_name;

-- The leases of subscribed slots.
create or replace view pgque.partition_slot as
select b.queue_id, b.co_name, b.slot, p.lease_owner, p.lease_until, p.lease_ttl,
       p.lease_epoch as epoch
from pgque.slot b
join pgque.subscription p on p.sub_id = b.sub_id
where b.is_subscribed;

-- For operators: the owner of each slot's lease and how far the slot is behind. pending_events counts
-- the events of all keys since the slot's position, as get_consumer_info does: an upper estimate.
create or replace view pgque.partition_slot_status as
select b.queue_name, b.co_name as consumer, b.slot, b.n, p.lease_owner, p.lease_until,
       p.lease_epoch as epoch, p.sub_last_tick as last_tick,
       p.newest_event_seq - p.tick_event_seq as pending_events,
       clock_timestamp() - p.tick_time as lag,
       b.is_subscribed as subscribed,
       0::bigint as held_events  -- for the command drain of version 0.3; it goes with 0.5
from pgque.slot b
join pgque.consumer_progress p on p.sub_id = b.sub_id;
