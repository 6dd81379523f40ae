-- Removes the schema with all queues, events and positions. The roles stay: they belong to the
-- cluster, and other databases may use them.
set local client_min_messages = warning;
drop schema if exists pgque cascade;
