-- Whether this database came here by pg_dump and pg_restore, with transaction ids of another
-- cluster in its events and ticks. A restore computes a materialized view anew; a file copy,
-- pg_upgrade and a template keep it, and the transaction ids with it. first_txid is newer than all
-- that the restore loaded.
create materialized view if not exists pgque.origin as
select gen_random_uuid() as origin_id, pg_snapshot_xmax(pg_current_snapshot()) as first_txid;

alter table pgque.config add column if not exists origin_id uuid;

update pgque.config
set origin_id = (select o.origin_id from pgque.origin o)
where origin_id is null;
