-- Creates a queue's event table, without children, in its group. ATTACH only locks the group against
-- other changes, where CREATE TABLE ... PARTITION OF would wait for producers and block them.
-- locks: pgque.event, against another creation, until the transaction ends. writes: the catalog.
create or replace function pgque.create_event_parent(i_queue_id integer)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_group  integer := i_queue_id / 64;
    v_name   text := format('event_group_%s', i_queue_id / 64);
begin
    lock table only pgque.event in share update exclusive mode;
    if to_regclass(format('pgque.%I', v_name)) is null then
        perform pgque.attach_event_table('event', v_name, 256 * v_group, 256 * (v_group + 1));
    end if;
    perform pgque.attach_event_table(
        v_name, format('event_%s', i_queue_id), 4 * i_queue_id, 4 * (i_queue_id + 1));
end;
$$;

-- Creates a table of events as a partition for a range of event tables. A table with the events of one
-- queue is divided by list, a group by range.
-- locks: the parent, against other changes. writes: the catalog.
create or replace function pgque.attach_event_table(
    i_parent text, i_name text, i_from integer, i_to integer)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    execute format(  -- quoted: one of two words
        'create table pgque.%I (like pgque.event including defaults) partition by %s (ev_table)',
        i_name, case when i_to - i_from = 4 then 'list' else 'range' end);
    execute format('alter table pgque.%I attach partition pgque.%I for values from (%L) to (%L)',
                   i_parent, i_name, i_from, i_to);
    execute format('revoke all on pgque.%I from public', i_name);
end;
$$;

-- What maintenance may drop, each by a statement under a lock on its group: event tables of dropped
-- queues, with the sequences of their ids. The constraint shows that a queue was dropped: while a dump
-- is restored, the queues come after the events.
create or replace view pgque.left_object as
select t.inhparent::regclass::text as parent,
       format('drop table pgque.%I; drop sequence if exists pgque.%I', c.relname,
              replace(c.relname, 'dropped', 'id_seq')) as statement
from pg_inherits g
join pg_inherits t on t.inhparent = g.inhrelid
join pg_class c on c.oid = t.inhrelid
join pg_constraint d on d.conrelid = c.oid and d.conname = 'queue_was_dropped'
where g.inhparent = 'pgque.event'::regclass;

-- Drops what dropped queues left, at most ten objects per call, because one queue's tables take about
-- fifty locks. Dropping a partition locks its parent exclusively, and producers of other queues lock the
-- parent until they commit. So the call waits at most 10 ms for each parent, and the next call tries
-- again. Returns how many objects it dropped. If one cannot be dropped, for example because a view reads
-- it, a warning names it.
-- locks: a group, exclusively, until the transaction ends. writes: the catalog.
create or replace function pgque.maint_event_tables()
returns integer
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp set lock_timeout = '10ms'
as $$
declare
    v_left     record;
    v_busy     text[] := array[]::text[];
    v_dropped  integer := 0;
begin
    perform pgque.check_read_committed('maintenance');
    for v_left in select l.parent, l.statement from pgque.left_object l loop
        continue when v_left.parent = any (v_busy);
        begin
            perform pgque.commit_locally();
            execute format('lock table only %s in access exclusive mode', v_left.parent);  -- quoted: by regclass
            -- Another session may have dropped it before the lock was taken.
            if exists (select from pgque.left_object l where l.statement = v_left.statement) then
                execute v_left.statement;
                v_dropped := v_dropped + 1;
            end if;
        exception
            when lock_not_available then
                v_busy := array_append(v_busy, v_left.parent);
            when others then
                raise warning '%: %', v_left.statement, sqlerrm;
        end;
        exit when v_dropped = 10;
    end loop;
    return v_dropped;
end;
$$;
