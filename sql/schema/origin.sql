-- Computes the row of pgque.origin: the present one, if any, so that a REFRESH changes nothing.
-- pg_restore creates the view empty and refreshes it once, which makes a new row.
create or replace function pgque.find_origin(out origin_id uuid, out first_txid xid8)
returns record
language plpgsql set search_path = pgque, pg_catalog, pg_temp as $$
begin
    select o.origin_id, o.first_txid into origin_id, first_txid from pgque.origin o;
    if not found then
        origin_id := gen_random_uuid();
        first_txid := pg_snapshot_xmax(pg_current_snapshot());
    end if;
end;
$$;

-- Shows whether this database came from pg_dump and pg_restore, with transaction ids of another
-- cluster in its events and ticks. A restore refills a materialized view; a file copy,
-- pg_upgrade and a template keep it, and keep the transaction ids. first_txid is newer than all
-- that the restore loaded.
create materialized view if not exists pgque.origin as
select o.origin_id, o.first_txid from pgque.find_origin() o;

update pgque.config
set origin_id = (select o.origin_id from pgque.origin o)
where origin_id is null;
