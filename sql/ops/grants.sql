-- Last of all files: whatever the ones before created is closed to PUBLIC, and each role gets the
-- functions that are its own. What stands in no list below is internal.
revoke all on schema pgque from public;
revoke all on all tables in schema pgque from public;
revoke all on all sequences in schema pgque from public;
revoke all on all routines in schema pgque from public;

grant usage on schema pgque to pgque_reader, pgque_writer, pgque_admin;

grant select on
    pgque.config, pgque.queue, pgque.consumer, pgque.tick, pgque.subscription,
    pgque.retry_queue, pgque.dead_letter, pgque.event_template
to pgque_reader, pgque_admin;

grant execute on function
    pgque.version(),
    pgque.get_queue_info(),
    pgque.get_queue_info(text)
to pgque_reader, pgque_writer;

grant execute on function
    pgque.send(text, text),
    pgque.send(text, jsonb),
    pgque.send(text, text, text),
    pgque.send(text, text, jsonb),
    pgque.send_batch(text, text[]),
    pgque.send_batch(text, jsonb[]),
    pgque.send_batch(text, text, text[]),
    pgque.send_batch(text, text, jsonb[]),
    pgque.insert_event(text, text, text),
    pgque.insert_event(text, text, text, text, text, text, text),
    pgque.current_event_table(text),
    pgque.dlq_replay(bigint),
    pgque.dlq_replay_all(text)
to pgque_writer;

grant execute on function
    pgque.register_consumer(text, text),
    pgque.register_consumer_at(text, text, bigint),
    pgque.unregister_consumer(text, text),
    pgque.subscribe(text, text),
    pgque.unsubscribe(text, text),
    pgque.next_batch(text, text),
    pgque.next_batch_custom(text, text, interval, integer, interval),
    pgque.next_batch_custom(text, text, interval, integer, interval, integer),
    pgque.get_batch_events(bigint),
    pgque.get_batch_info(bigint),
    pgque.batch_read_plan(bigint, integer),
    pgque.check_filenode(text, bigint),
    pgque.finish_batch(bigint),
    pgque.claim_batch(text, text, text, interval, interval, integer, interval, integer, bigint),
    pgque.renew_batch(bigint, text, bigint, interval),
    pgque.ack_batch(bigint, text, bigint),
    pgque.release_batch(bigint, text, bigint),
    pgque.get_lease_info(text, text),
    pgque.receive(text, text, integer),
    pgque.ack(bigint),
    pgque.nack(bigint, pgque.message, interval, text),
    pgque.nack_batch(bigint, bigint[], interval, text),
    pgque.dead_letter_batch(bigint, bigint[], text),
    pgque.event_retry(bigint, bigint, integer),
    pgque.event_retry(bigint, bigint, timestamptz),
    pgque.get_consumer_info(),
    pgque.get_consumer_info(text),
    pgque.get_consumer_info(text, text),
    pgque.dlq_inspect(text, integer),
    pgque.dlq_summary(text)
to pgque_reader;

grant execute on function
    pgque.create_queue(text),
    pgque.drop_queue(text),
    pgque.drop_queue(text, boolean),
    pgque.set_queue_config(text, text, text),
    pgque.insert_event_raw(text, bigint, timestamptz, integer, integer,
                           text, text, text, text, text, text),
    pgque.batch_event_sql(bigint),
    pgque.batch_event_tables(bigint),
    pgque.ticker(),
    pgque.ticker(text),
    pgque.force_next_tick(text),
    pgque.ticker_pace(),
    pgque.maint(),
    pgque.maint_rotate_tables_step1(text),
    pgque.maint_rotate_tables_step2(),
    pgque.maint_retry_events(),
    pgque.maint_compact_positions(),
    pgque.maint_compact_ticks(),
    pgque.dlq_purge(text, interval)
to pgque_admin;
grant execute on procedure pgque.ticker_loop() to pgque_admin;
