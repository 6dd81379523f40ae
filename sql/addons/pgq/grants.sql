-- The last file: revokes everything that the earlier files created from PUBLIC, and grants each role
-- its functions. In PgQ, every role may call the functions that show queues and consumers, and read
-- these tables. A function that is in no list is internal.
revoke all on schema pgq, pgq_coop, pgq_ext from public;
revoke all on all tables in schema pgq, pgq_coop, pgq_ext from public;
revoke all on all routines in schema pgq from public;
revoke all on all routines in schema pgq_coop from public;
revoke all on all routines in schema pgq_ext from public;

grant execute on all functions in schema pgq_coop to pgq_reader;
grant execute on all functions in schema pgq_ext to pgq_writer;
revoke all on function pgq_coop.version() from pgq_reader;
revoke all on function pgq_ext.version(), pgq_ext.check_arguments(text, text, bigint, text)
from pgq_writer;

grant usage on schema pgq, pgq_coop, pgq_ext to public;

grant select on pgq.queue, pgq.consumer, pgq.tick, pgq.subscription to public;
grant select on pgq.event_template to pgq_reader, pgq_admin;
grant select, delete, update (ev_retry_after) on pgq.retry_queue to pgq_admin;
grant update on pgq.queue to pgq_admin;

grant execute on function
    pgq.get_queue_info(),
    pgq.get_queue_info(text),
    pgq.get_consumer_info(),
    pgq.get_consumer_info(text),
    pgq.get_consumer_info(text, text),
    pgq.quote_fqname(text),
    pgq.seq_getval(text),
    pgq.version(),
    pgq_coop.version(),
    pgq_ext.version()
to public;

select pgque.grant_execute('pgq', 'pgq_writer',
    'insert_event jsontriga logutriga sqltriga check_tx_limit');

select pgque.grant_execute('pgq', 'pgq_reader',
    'unregister_consumer next_batch get_batch_events get_batch_cursor');

select pgque.grant_execute('pgq', 'pgq_admin',
    'maint_tables_to_vacuum maint_operations insert_event_raw upgrade_schema');
