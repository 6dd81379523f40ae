-- The last file: makes views and rights for the queues that exist, revokes everything that the
-- earlier files created from PUBLIC, and grants each role its functions. In PgQ, everybody may call
-- the functions that show queues and consumers, and read these tables. A function that is in no
-- list is internal.
do $$
begin
    perform pgq.upgrade_schema();
end;
$$;

revoke all on schema pgq, pgq_coop, pgq_ext from public;
revoke all on all tables in schema pgq, pgq_coop, pgq_ext from public;
revoke all on all routines in schema pgq from public;
revoke all on all routines in schema pgq_coop from public;
revoke all on all routines in schema pgq_ext from public;

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
    pgq.refuse_role(text, text, text),
    pgq.version(),
    pgq_coop.version(),
    pgq_ext.version()
to public;

grant execute on function
    pgq.insert_event(text, text, text),
    pgq.insert_event(text, text, text, text, text, text, text),
    pgq.current_event_table(text),
    pgq.jsontriga(),
    pgq.logutriga(),
    pgq.sqltriga(),
    pgq.check_tx_limit(text),
    pgq_ext.upgrade_schema(),
    pgq_ext.is_batch_done(text, text, bigint),
    pgq_ext.is_batch_done(text, bigint),
    pgq_ext.set_batch_done(text, text, bigint),
    pgq_ext.set_batch_done(text, bigint),
    pgq_ext.is_event_done(text, text, bigint, bigint),
    pgq_ext.is_event_done(text, bigint, bigint),
    pgq_ext.set_event_done(text, text, bigint, bigint),
    pgq_ext.set_event_done(text, bigint, bigint),
    pgq_ext.get_last_tick(text, text),
    pgq_ext.get_last_tick(text),
    pgq_ext.set_last_tick(text, text, bigint),
    pgq_ext.set_last_tick(text, bigint)
to pgq_writer;

grant execute on function
    pgq.batch_event_sql(bigint),
    pgq.batch_event_tables(bigint),
    pgq.find_tick_helper(integer, bigint, timestamptz, bigint, bigint, interval),
    pgq.register_consumer(text, text),
    pgq.register_consumer_at(text, text, bigint),
    pgq.unregister_consumer(text, text),
    pgq.next_batch_info(text, text),
    pgq.next_batch(text, text),
    pgq.next_batch_custom(text, text, interval, integer, interval),
    pgq.get_batch_events(bigint),
    pgq.get_batch_info(bigint),
    pgq.get_batch_cursor(bigint, text, integer, text),
    pgq.get_batch_cursor(bigint, text, integer),
    pgq.event_retry(bigint, bigint, timestamptz),
    pgq.event_retry(bigint, bigint, integer),
    pgq.batch_retry(bigint, integer),
    pgq.force_tick(text),
    pgq.finish_batch(bigint),
    pgq_coop.register_subconsumer(text, text, text),
    pgq_coop.unregister_subconsumer(text, text, text, integer),
    pgq_coop.next_batch(text, text, text),
    pgq_coop.next_batch(text, text, text, interval),
    pgq_coop.next_batch_custom(text, text, text, interval, integer, interval),
    pgq_coop.next_batch_custom(text, text, text, interval, integer, interval, interval),
    pgq_coop.finish_batch(bigint)
to pgq_reader;

grant execute on function
    pgq.ticker(text, bigint, timestamptz, bigint),
    pgq.ticker(text),
    pgq.ticker(),
    pgq.maint_retry_events(),
    pgq.maint_rotate_tables_step1(text),
    pgq.maint_rotate_tables_step2(),
    pgq.maint_tables_to_vacuum(),
    pgq.maint_operations(),
    pgq.maint(),
    pgq.upgrade_schema(),
    pgq.grant_perms(text),
    pgq.tune_storage(text),
    pgq.seq_setval(text, bigint),
    pgq.create_queue(text),
    pgq.drop_queue(text, boolean),
    pgq.drop_queue(text),
    pgq.set_queue_config(text, text, text),
    pgq.insert_event_raw(text, bigint, timestamptz, integer, integer,
                         text, text, text, text, text, text),
    pgq.event_retry_raw(text, text, timestamptz, bigint, timestamptz, integer,
                        text, text, text, text, text, text)
to pgq_admin;
