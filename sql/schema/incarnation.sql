-- Returns the server's timeline as a number; a promotion or a recovery changes it. Returns 0 where it
-- cannot be read: during recovery, and on managed servers that refuse these functions.
create or replace function pgque.read_timeline()
returns bigint
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    -- pg_control_checkpoint() would show the old timeline until the first checkpoint of a new one.
    return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
exception when object_not_in_prerequisite_state or feature_not_supported
          or insufficient_privilege or undefined_function then
    return 0;
end;
$$;

-- The incarnation of the database. The upper 32 bits are the timeline on which it began. The lower
-- 32 bits are a random number, because two promotions from one origin may get the same timeline; it is
-- 0 in the first incarnation. It is a sequence because setval() takes effect at once and is never rolled
-- back, so that no session waits for the transaction that first noticed a promotion.
create sequence if not exists pgque.lineage_seq minvalue 0;

select setval('pgque.lineage_seq', pgque.read_timeline() << 32)
where pg_sequence_last_value('pgque.lineage_seq') is null;

-- One row. A transaction that begins a new incarnation locks it, so that only one of two concurrent
-- transactions does.
create table if not exists pgque.lineage_lock (
    singleton  boolean primary key default true check (singleton)
);

insert into pgque.lineage_lock default values on conflict do nothing;
