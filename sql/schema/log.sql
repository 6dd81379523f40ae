-- The logs of positions and ticks have two halves each, 0 and 1. Everything is written to the
-- current half. Maintenance copies what is still needed to the other one, makes that
-- the current one, and truncates the half that it left when no snapshot needs it any more. So no
-- row dies, and what a snapshot sees stays where it sees it.

-- Which half of each log is the current one. Updated by a switch and by nothing else: whoever locks
-- the row in REPEATABLE READ gets a serialization failure if there was a switch since its snapshot.
-- Two rows that each poll reads: an index would only make that dearer.
create table if not exists pgque.log (
    log_name  text not null,
    half      smallint not null check (half in (0, 1))
);

insert into pgque.log (log_name, half)
select log_name, 0
from unnest(array['tick', 'position']) log_name
where not exists (select from pgque.log);

-- What maintenance knows of each log: when it was rotated last; of one with halves, since when the
-- other half waits to be emptied, which transaction switched, or a later one that a standby's
-- snapshots have to be newer than (marked_at), and which transactions held a snapshot after the
-- switch; or whether that half holds a copy for the next switch; and since when its locks were not to
-- be had. Snapshots are waited for no longer than the patience.
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
-- (ops/regenerate.sql). Functions that pass their rows are made anew.
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
    for v_constraint in  -- whose names the new table takes
        select c.conname from pg_constraint c where c.conrelid = 'pgque.position_before'::regclass
    loop
        execute format('alter table pgque.position_before rename constraint %I to %I',
                       v_constraint, format('%s_before', v_constraint));
    end loop;
end;
$$;
