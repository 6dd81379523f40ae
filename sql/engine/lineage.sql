-- A life of the database. A standby that is promoted, or a recovery that stops early, goes on without
-- the last transactions, so ids that were given out there come again and mean something else. Both
-- change the server's timeline. Whoever gives out a batch id compares it with that of the life; a new
-- life has another lineage, and batch ids that were never given out.

-- Whether the life is that of the server's timeline. Declared immutable so that the planner asks once
-- and keeps the answer with the plan: a yes is good for as long as the session lives, since a server
-- changes its timeline only while it accepts no writes, and a no only leads to follow_timeline.
-- locks: none. writes: nothing.
create or replace function pgque.is_timeline_followed()
returns boolean
language plpgsql immutable
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return not pg_is_in_recovery()
           and pg_sequence_last_value('pgque.lineage_seq') >> 32 = pgque.read_timeline();
end;
$$;

-- Begins a life where the server's timeline is not that of the life. Returns the sequence of batch
-- ids, which then holds new ones. Waits for nobody but a session that is about to begin the same life,
-- not for its commit.
-- locks: the row in lineage_lock, when it begins a life. writes: lineage_seq, batch_id_seq.
create or replace function pgque.follow_timeline()
returns regclass
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_timeline  bigint;
begin
    if pg_is_in_recovery() then
        return 'pgque.batch_id_seq';
    end if;
    v_timeline := pgque.read_timeline();
    while pg_sequence_last_value('pgque.lineage_seq') >> 32 <> v_timeline loop
        perform from pgque.lineage_lock l for update skip locked;
        if not found then
            perform pg_sleep(0.001);
        elsif pg_sequence_last_value('pgque.lineage_seq') >> 32 <> v_timeline then
            perform pgque.begin_life(v_timeline);
        end if;
    end loop;
    return 'pgque.batch_id_seq';
end;
$$;

-- Moves the ids of batches, then the life. Ahead by a million, since no tail that is lost is as long;
-- and by a random number below a billion, so that another recovery from the same origin gives out
-- others. The ids first: who sees the new life may draw one.
-- locks: the row in lineage_lock, by the caller. writes: lineage_seq, batch_id_seq.
create or replace function pgque.begin_life(i_timeline bigint)
returns void
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform setval('pgque.batch_id_seq', coalesce(pg_sequence_last_value('pgque.batch_id_seq'), 0)
                   + 1000000 + floor(random() * 1000000000)::bigint);
    perform setval('pgque.lineage_seq', (i_timeline << 32) + 1 + floor(random() * 4294967295)::bigint);
end;
$$;

-- A new batch's id. It is SQL so that it becomes part of the statement that calls it, and costs what
-- nextval costs.
-- locks: none; those of follow_timeline. writes: batch_id_seq; those of follow_timeline.
create or replace function pgque.next_batch_id()
returns bigint
language sql
as $$
    select pg_catalog.nextval(case
        when pgque.is_timeline_followed() then 'pgque.batch_id_seq'::pg_catalog.regclass
        else pgque.follow_timeline() end)
$$;

-- Begins a life by hand: after what changes no timeline, such as starting from an older snapshot of
-- the disk, and where the server does not tell its timeline. Returns the new lineage. It counts at
-- once, also when the transaction is rolled back.
-- locks: the row in lineage_lock. writes: lineage_seq, batch_id_seq.
create or replace function pgque.renew_lineage()
returns uuid
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    perform pgque.check_adopted();
    perform from pgque.lineage_lock l for update;
    perform pgque.begin_life(pgque.read_timeline());
    return pgque.lineage();
end;
$$;

-- Which life of which database this is, for stores that outlive it: batch ids of two lineages may be
-- equal and mean different events. Made of what is new at installation and at adoption, of the life,
-- and of the database's own number, which tells a copy made by CREATE DATABASE ... TEMPLATE from its
-- original.
-- locks: those of follow_timeline. writes: the same.
create or replace function pgque.lineage()
returns uuid
language plpgsql security definer
set search_path = pgque, pg_catalog, pg_temp
as $$
declare
    v_life  bigint;
begin
    perform pgque.check_adopted();
    perform pgque.follow_timeline();
    v_life := pg_sequence_last_value('pgque.lineage_seq') & 4294967295;
    return (select left(encode(sha256(convert_to(
                        concat_ws('/', c.origin_id, d.oid, nullif(v_life, 0)), 'UTF8')), 'hex'),
                        32)::uuid
            from pgque.config c
            join pg_database d on d.datname = current_database());
end;
$$;
