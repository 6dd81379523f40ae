-- The logs of positions and ticks have two halves each, 0 and 1. Everything is written to the
-- current half. Maintenance copies the rows that are still needed to the other half, makes that the
-- current one, and truncates the half that it left when no snapshot needs it any more. So there are
-- no dead rows, and a snapshot still finds its rows where it saw them.

-- Which half of each log is the current one. Only a switch updates it: a REPEATABLE READ
-- transaction that locks the row gets a serialization failure if a switch happened after its
-- snapshot. Every poll reads these two rows; an index would only make that slower.
create table if not exists pgque.log (
    log_name  text not null,
    half      smallint not null check (half in (0, 1))
);

insert into pgque.log (log_name, half)
select log_name, 0
from unnest(array['tick', 'position']) log_name
where not exists (select from pgque.log);

-- The state of maintenance for each log. rotated_at is the time of the last rotation. For a log
-- with halves, left_at is the time since when the other half waits to be emptied. left_by is the
-- transaction that switched, or a later one that the snapshots of standbys have to be newer than;
-- marked_at is when left_by was set. holders are the transactions that held a snapshot after the
-- switch. is_copied says that the other half holds a copy for the next switch. tried_at is the time
-- since when the log's locks could not be taken. patience is how long maintenance waits for
-- snapshots.
create table if not exists pgque.log_rotation (
    log_name    text primary key,
    rotated_at  timestamptz,
    left_at     timestamptz,
    left_by     xid8,
    marked_at   timestamptz,
    holders     text[],
    is_copied   boolean not null default false,
    tried_at    timestamptz,
    patience    interval not null default '1 hour' check (patience >= '0')
);

insert into pgque.log_rotation (log_name)
values ('tick'), ('position'), ('counter'), ('history')
on conflict do nothing;

-- Earlier versions had one table of ticks and one of positions. Their rows move to the first halves
-- (schema/tick.sql, schema/partition.sql); the tables are dropped when no view reads them any more
-- (ops/regenerate.sql). Functions that take or return their rows are dropped and created again.
do $$
declare
    v_name        regprocedure;
    v_constraint  name;
begin
    if (select c.relkind from pg_class c where c.oid = to_regclass('pgque.tick'))
       is distinct from 'r' then
        return;
    end if;
    drop view if exists pgque.tick_retention;
    for v_name in
        select p.oid::regprocedure
        from pg_proc p
        join pg_class c on c.oid in ('pgque.tick'::regclass, 'pgque.position_log'::regclass)
        where p.prorettype = c.reltype or c.reltype = any (p.proargtypes::oid[])
    loop
        execute format('drop function %s', v_name);  -- quoted: by regprocedure
    end loop;
    alter table pgque.tick rename to tick_before;
    alter table pgque.position_log rename to position_before;
    for v_constraint in  -- the new table takes these names
        select c.conname from pg_constraint c where c.conrelid = 'pgque.position_before'::regclass
    loop
        execute format('alter table pgque.position_before rename constraint %I to %I',
                       v_constraint, format('%s_before', v_constraint));
    end loop;
end;
$$;
