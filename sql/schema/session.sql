-- One transaction installs or removes everything; a second one waits here for the first.
-- The search path is pinned so that no object of the installing user can stand in for ours.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

select pg_advisory_xact_lock(hashtextextended('pgque.install', 0));
