-- The incarnations of a database. A promoted standby, or a recovery that stops early, continues without the
-- last transactions, so ids that those had assigned are assigned again with another meaning. Both
-- change the server's timeline. Every function that assigns a batch id compares the timeline with
-- that of the current incarnation. A new incarnation has batch ids that were never used. Its
-- sequence and its lock keep the names of version 0.3, whose sessions may wait for an upgrade.

-- Whether the current incarnation belongs to the server's timeline, and the database is not a restored one
-- that waits to be adopted. Declared immutable so that the planner calls it once and keeps the answer with
-- the plan. True stays valid for as long as the session lives, since a server changes its timeline only
-- while it accepts no writes, and a restore creates the functions again; false only leads to
-- follow_timeline and check_adopted.
create or replace function pgque.is_timeline_followed()
returns boolean
language plpgsql immutable security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return not pg_is_in_recovery()
       and pg_sequence_last_value('pgque.lineage_seq') >> 32 = pgque.read_timeline()
       and not exists (select from pgque.config c, pgque.origin o where c.origin_id <> o.origin_id);
end;
$$;

-- Begins an incarnation if the current one does not belong to the server's timeline. Returns the sequence
-- of batch ids, which then assigns new ones. Waits only for a session that is about to begin the
-- same incarnation, and not for its commit.
-- locks: the row in lineage_lock, when it begins one. writes: lineage_seq, batch_id_seq.
create or replace function pgque.follow_timeline()
returns regclass
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
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
            perform pgque.begin_incarnation(v_timeline);
        end if;
    end loop;
    return 'pgque.batch_id_seq';
end;
$$;

-- Advances the batch ids, then the incarnation. The ids advance by a million, since no lost tail of
-- transactions is that long, and by a random number below a billion, so that another recovery from
-- the same origin assigns other ids. The ids come first because a session that sees the new incarnation
-- may draw one.
-- locks: the row in lineage_lock, by the caller. writes: lineage_seq, batch_id_seq.
create or replace function pgque.begin_incarnation(i_timeline bigint)
returns void
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform setval('pgque.batch_id_seq', coalesce(pg_sequence_last_value('pgque.batch_id_seq'), 0)
                   + 1000000 + floor(random() * 1000000000)::bigint);
    perform setval('pgque.lineage_seq', (i_timeline << 32) + 1 + floor(random() * 4294967295)::bigint);
end;
$$;

-- A new batch id. The function is in SQL so that it is inlined into the statement that calls it,
-- and costs what nextval costs.
-- locks: none; those of follow_timeline. writes: batch_id_seq; those of follow_timeline.
create or replace function pgque.next_batch_id()
returns bigint
language sql
as $$
    select pg_catalog.nextval(case
        when pgque.is_timeline_followed() then 'pgque.batch_id_seq'::pg_catalog.regclass
        else pgque.follow_timeline() end)
$$;

-- Begins an incarnation by hand: after an event that changes no timeline, such as a start from an older
-- snapshot of the disk, and on servers that do not report their timeline. Returns the new incarnation.
-- It takes effect at once, even if the transaction is rolled back.
-- locks: the row in lineage_lock. writes: lineage_seq, batch_id_seq.
create or replace function pgque.renew_incarnation()
returns uuid
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
begin
    perform pgque.check_adopted();
    perform from pgque.lineage_lock l for update;
    perform pgque.begin_incarnation(pgque.read_timeline());
    return pgque.incarnation();
end;
$$;

-- Identifies this incarnation of this database, for stores that outlive it: batch ids of two
-- incarnations may be equal and mean different events. It is a hash of an id that is new at
-- installation and at adoption, of the incarnation's number, and of the database's OID, which distinguishes
-- a copy made by CREATE DATABASE ... TEMPLATE from its original.
-- locks: those of follow_timeline. writes: the same.
create or replace function pgque.incarnation()
returns uuid
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp as $$
declare
    v_number  bigint;
begin
    perform pgque.check_adopted();
    perform pgque.follow_timeline();
    v_number := pg_sequence_last_value('pgque.lineage_seq') & 4294967295;
    return (select left(encode(sha256(convert_to(
                        concat_ws('/', c.origin_id, d.oid, nullif(v_number, 0)), 'UTF8')), 'hex'),
                        32)::uuid
            from pgque.config c
            join pg_database d on d.datname = current_database());
end;
$$;

-- The name of incarnation() before version 0.4. It goes with version 0.5.
-- locks: those of incarnation. writes: the same.
create or replace function pgque.lineage()
returns uuid
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.incarnation();
end;
$$;

-- The name of renew_incarnation() before version 0.4. It goes with version 0.5.
-- locks: those of renew_incarnation. writes: the same.
create or replace function pgque.renew_lineage()
returns uuid
language plpgsql security definer set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    return pgque.renew_incarnation();
end;
$$;
