-- The server's timeline, which a promotion and a recovery change, as a number. 0 where it is not told:
-- during recovery, and on managed servers that refuse these functions.
-- locks: none. writes: nothing.
create or replace function pgque.read_timeline()
returns bigint
language plpgsql
set search_path = pgque, pg_catalog, pg_temp
as $$
begin
    -- Not pg_control_checkpoint(), which is behind until the first checkpoint of a new timeline.
    return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
exception when object_not_in_prerequisite_state or feature_not_supported
          or insufficient_privilege or undefined_function then
    return 0;
end;
$$;

-- Which life of the database this is: the timeline on which it began in the upper 32 bits, a random
-- number in the others, which is 0 in the first life. Two promotions from one origin may get the same
-- timeline. It is a sequence because setval() counts at once and for all, so that nobody waits for the
-- transaction that was the first to notice a promotion.
create sequence if not exists pgque.lineage_seq minvalue 0;

select setval('pgque.lineage_seq', pgque.read_timeline() << 32)
where pg_sequence_last_value('pgque.lineage_seq') is null;

-- One row. Whoever begins a life locks it, so that of two at once one does.
create table if not exists pgque.lineage_lock (
    singleton  boolean primary key default true check (singleton)
);

insert into pgque.lineage_lock default values on conflict do nothing;
