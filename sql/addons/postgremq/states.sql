-- The states of messages, as rows that are only inserted. Each message has a state per queue. A
-- change (claim, ack, nack, release, new visibility) inserts the next step, so of two sessions that
-- change a message at once only one succeeds. Superseded rows are removed by TRUNCATE: the table
-- has two parts, new messages go to the current one, and all steps of a message stay in one part.
-- Maintenance moves the last unfinished messages of the other part to it (rotation.sql).
--
-- status: pending, processing and completed, and three that end a message's steps in its part:
--   removed (deleted, or in the dead letter queue) and moved (to another part).
-- txid: the transaction that inserted the row.
-- due_at: for pending and processing, when the row becomes visible, in microseconds since 1970; for a
--   message that has no delivery attempts left, the largest number. It may be later than vt: see
--   floors.sql. For the others it is null, so that they are not in the indexes that consumers use.
create table if not exists postgremq.state (
    txid          xid8 not null default pg_current_xact_id(),
    due_at        bigint,
    published_at  timestamptz,
    vt            timestamptz not null,
    processed_at  timestamptz,
    queue_id      integer not null,
    message_id    integer not null,
    step          integer not null,
    attempts      integer not null,
    part          smallint not null,
    status        text not null,
    token         text,
    constraint state_is_due check (due_at is not null or status not in ('pending', 'processing'))
) partition by list (part);

create table if not exists postgremq.state_0 partition of postgremq.state for values in (0);
create table if not exists postgremq.state_1 partition of postgremq.state for values in (1);

create unique index if not exists state_step
    on postgremq.state (queue_id, message_id, step, part);
create index if not exists state_due
    on postgremq.state (queue_id, due_at, message_id)
    where due_at is not null;
create index if not exists state_due_txid
    on postgremq.state (queue_id, txid)
    where due_at is not null;

-- Messages that were completed in a part that was, or will be, truncated. No consumer reads them.
create table if not exists postgremq.finished (
    queue_id      integer not null,
    message_id    integer not null,
    published_at  timestamptz,
    vt            timestamptz not null,
    attempts      integer not null,
    processed_at  timestamptz,
    primary key (queue_id, message_id)
);

-- Where consumers of a queue begin to search (floors.sql). The floor with the highest number counts.
create sequence if not exists postgremq.floor_seq;

do $$
begin
    if exists (select from pg_attribute a
               where a.attrelid = to_regclass('postgremq.floor') and a.attname = 'new_txid') then
        drop table postgremq.floor cascade;  -- of version 0.3: without a floor, a search takes longer
        drop type if exists postgremq.claims cascade;
    end if;
end;
$$;

create table if not exists postgremq.floor (
    floor_no   bigint not null default nextval('postgremq.floor_seq'),
    due_at     bigint not null,
    origin_id  uuid not null,
    queue_id   integer not null,
    due_id     integer not null,
    part       smallint not null,
    late       xid8[] not null,
    due_times  bigint[] not null,
    due_ids    integer[] not null
) partition by list (part);

create table if not exists postgremq.floor_0 partition of postgremq.floor for values in (0);
create table if not exists postgremq.floor_1 partition of postgremq.floor for values in (1);

create index if not exists floor_newest on postgremq.floor (queue_id, floor_no);

-- The time that no new due_at is before. A sequence, because its value counts for all transactions
-- at once, regardless of their snapshots. Only the holder of the row of barrier_lock may move it.
create sequence if not exists postgremq.barrier minvalue 0 start 0;

select setval('postgremq.barrier', 0)
where pg_sequence_last_value('postgremq.barrier') is null;

create table if not exists postgremq.barrier_lock (
    singleton  boolean primary key default true check (singleton)
);

insert into postgremq.barrier_lock default values on conflict do nothing;

-- How often the current part has changed: part 0 is the current one while this is even, part 1 while
-- it is odd. A sequence for the same reason. Only the session that holds the row of rotation may change it.
create sequence if not exists postgremq.turn minvalue 0 start 0;

select setval('postgremq.turn', 0)
where pg_sequence_last_value('postgremq.turn') is null;

-- The part that new messages go to.
create or replace function postgremq.current_part()
returns smallint
language sql
as $$
    select (pg_catalog.pg_sequence_last_value('postgremq.turn') operator(pg_catalog.%) 2)
           ::pg_catalog.int2
$$;

-- How often a session may have put an open message into the part that is not current. Such a session
-- takes the next number after the insert and before the commit.
create sequence if not exists postgremq.late minvalue 0 start 0;

select setval('postgremq.late', 0)
where pg_sequence_last_value('postgremq.late') is null;

-- How often parts change, and when they last did. One row.
create table if not exists postgremq.rotation (
    singleton    boolean primary key default true check (singleton),
    switched_at  timestamptz not null default clock_timestamp(),
    period       interval not null default '2 minutes' check (period >= '0')
);

insert into postgremq.rotation default values on conflict do nothing;

-- For the part that is not current, once all of its messages were finished or moved: since when,
-- by which transaction, and the numbers of turn and late. It is void once one of these numbers has
-- changed.
create table if not exists postgremq.rotation_part (
    part     smallint primary key check (part in (0, 1)),
    turn     bigint,
    late     bigint,
    done_at  timestamptz,
    done_by  xid8
);

-- Functions of version 0.3 that this version does not have, or has with other arguments.
do $$
declare
    v_function regprocedure;
begin
    if exists (select from pg_attribute a
               where a.attrelid = 'postgremq.rotation_part'::regclass and a.attname = 'holders') then
        alter table postgremq.rotation_part drop column holders;
    end if;
    for v_function in
        select p.oid
        from pg_proc p
        where p.pronamespace = 'postgremq'::regnamespace
          and p.proname ~ '^(finish_claims?|is_due)$|^(find|finish|is|claim)_.*_[01]$'
    loop
        execute format('drop function %s', v_function);  -- quoted: by regprocedure
    end loop;
end;
$$;

insert into postgremq.rotation_part (part) values (0), (1) on conflict do nothing;
