-- The last file: revokes everything that the earlier files created from PUBLIC, and grants each
-- role its functions. Functions that are in no list below are internal.
revoke all on schema pgque from public;
revoke all on all tables in schema pgque from public;
revoke all on all sequences in schema pgque from public;
revoke all on all routines in schema pgque from public;

grant usage on schema pgque to pgque_reader, pgque_writer, pgque_admin;

-- Earlier versions gave other rights.
revoke all on
    pgque.queue, pgque.consumer, pgque.tick, pgque.subscription, pgque.retry_queue,
    pgque.event_template, pgque.idem
from pgque_reader, pgque_writer, pgque_admin;

-- Payloads that wait are for those who read payloads.
grant select on
    pgque.config, pgque.dead_letter, pgque.delayed_events, pgque.retry_queue,
    pgque.partition_consumer, pgque.partition_slot, pgque.partition_slot_status,
    pgque.partition_held
to pgque_reader, pgque_admin;

grant select on
    pgque.queue, pgque.consumer, pgque.tick, pgque.subscription, pgque.event_template, pgque.addon
to pgque_reader, pgque_writer, pgque_admin;

-- It shows every producer's keys.
grant select on pgque.idem to pgque_admin;

grant execute on function
    pgque.version(),
    pgque.get_queue_info(),
    pgque.get_queue_info(text),
    pgque.different_options(text, jsonb)
to pgque_reader, pgque_writer;

grant execute on function
    pgque.send(text, text),
    pgque.send(text, jsonb),
    pgque.send(text, text, text),
    pgque.send(text, text, jsonb),
    pgque.send(text, text, text, text),
    pgque.send(text, text, jsonb, text),
    pgque.send_batch(text, text),
    pgque.send_batch(text, text[]),
    pgque.send_batch(text, jsonb[]),
    pgque.send_batch(text, text, text),
    pgque.send_batch(text, text, text[]),
    pgque.send_batch(text, text, jsonb[]),
    pgque.send_at(text, text, text, timestamptz),
    pgque.send_at(text, text, jsonb, timestamptz),
    pgque.cancel_scheduled(bigint),
    pgque.send_idem(text, text, text, text, interval, text),
    pgque.send_idem(text, text, jsonb, text, interval, text),
    pgque.insert_event(text, text, text),
    pgque.insert_event(text, text, text, text, text, text, text),
    pgque.insert_event_bulk(text, text, text[]),
    pgque.current_event_table(text),
    pgque.open_staging(text),
    pgque.staging_table(bigint),
    pgque.publish_staging(bigint, xid8[], bigint),
    pgque.abort_staging(bigint),
    pgque.dlq_replay(bigint),
    pgque.dlq_replay_all(text),
    pgque.dlq_replay_matching(text, text, text, timestamptz, timestamptz, integer, bigint)
to pgque_writer;

-- The triggers run as the role that changes the row, and so do the functions that they call.
grant execute on function
    pgque.jsontriga(),
    pgque.logutriga(),
    pgque.sqltriga(),
    pgque.trigger_arguments(text, text[]),
    pgque.trigger_expressions(text, text[]),
    pgque.refuse_trigger(text, text, text),
    pgque.refuse_change(text, text, text),
    pgque.check_firing(text, text, text, text, boolean, boolean),
    pgque.check_columns(text, text[], text[]),
    pgque.add_field_columns(text, text[], text[]),
    pgque.check_key(text, text, text[], text[], text[], text[]),
    pgque.is_change_sent(text[], boolean[], text[], text[], text[]),
    pgque.table_columns(oid),
    pgque.split_row(text),
    pgque.describe_change(text, oid, text, text, text[], text, text, text, boolean, record, record),
    pgque.insert_change(text, text, record, text[]),
    pgque.row_as_json(text[], oid[], boolean[], text[]),
    pgque.change_letter(text, text[]),
    pgque.row_as_url(text[], boolean[], text[]),
    pgque.url_encode(text),
    pgque.change_fragment(text, text[], boolean[], text[], text[], text[]),
    pgque.update_fragment(text[], boolean[], text[], text[], text[]),
    pgque.key_fragment(text[], text[], text[])
to pgque_writer;

grant execute on function
    pgque.register_consumer(text, text),
    pgque.register_consumer(text, text, text),
    pgque.register_consumer_at(text, text, bigint),
    pgque.seek(text, text, text, boolean),
    pgque.unregister_consumer(text, text),
    pgque.unregister_consumer(text, text, boolean),
    pgque.subscribe(text, text),
    pgque.unsubscribe(text, text),
    pgque.register_subconsumer(text, text, text, boolean),
    pgque.unregister_subconsumer(text, text, text, integer),
    pgque.subscribe_subconsumer(text, text, text, boolean),
    pgque.unsubscribe_subconsumer(text, text, text, integer),
    pgque.touch_subconsumer(text, text, text),
    pgque.next_batch(text, text),
    pgque.next_batch(text, text, text, interval),
    pgque.next_batch_info(text, text),
    pgque.next_batch_custom(text, text, interval, integer, interval),
    pgque.next_batch_custom(text, text, interval, integer, interval, integer),
    pgque.next_batch_custom(text, text, text, interval, integer, interval, interval),
    pgque.get_batch_events(bigint),
    pgque.get_batch_info(bigint),
    pgque.batch_read_plan(bigint, integer),
    pgque.tick_range_read_plan(text, bigint, bigint, integer, text),
    pgque.window_ticks(text, timestamptz, timestamptz),
    pgque.check_filenode(text, bigint),
    pgque.finish_batch(bigint),
    pgque.claim_batch(text, text, text, interval, interval, integer, interval, integer, bigint),
    pgque.claim_coop(text, text, text, text, interval, interval, integer, interval, integer, bigint),
    pgque.claim_ticks(text, text, text, interval, bigint, bigint, bigint, text, text),
    pgque.tick_fingerprint(text, bigint),
    pgque.next_tick(text, text, bigint, integer),
    pgque.renew_batch(bigint, text, bigint, interval),
    pgque.ack_batch(bigint, text, bigint),
    pgque.release_batch(bigint, text, bigint),
    pgque.get_lease_info(text, text),
    pgque.lineage(),
    pgque.consumer_states(text[], text[], interval, integer, interval, integer),
    pgque.batch_has_events(bigint),
    pgque.hold_batch(bigint, bigint, text),
    pgque.enter_deployment(text, text, text),
    pgque.move_to_deployment(text, text, text),
    pgque.give_up_batch(bigint, text, text, bigint),
    pgque.set_events_aside(bigint, bigint[], text),
    pgque.set_aside_epoch(bigint),
    pgque.finished_before(bigint, integer),
    pgque.receive(text, text, integer),
    pgque.receive_coop(text, text, text, integer, interval),
    pgque.subscribe_slot(text, text, integer, integer),
    pgque.subscribe_slots(text, text, integer, text),
    pgque.slot_of_key(text, integer),
    pgque.held_batch_events(bigint),
    pgque.unsubscribe_slot(text, text, integer),
    pgque.set_partition_policy(text, text, text),
    pgque.repartition(text, text, integer),
    pgque.claim_slot(text, text, integer, text, interval),
    pgque.release_slot(text, text, integer, text),
    pgque.receive_partitioned(text, text, integer, integer, text, integer),
    pgque.ack_partitioned(text, text, integer, integer, text),
    pgque.nack_partitioned(text, text, integer, integer, text, pgque.message, interval, text),
    pgque.ack(bigint),
    pgque.nack(bigint, pgque.message, interval, text),
    pgque.nack_batch(bigint, bigint[], interval, text, text, bigint),
    pgque.nack_batch(bigint, bigint[], interval, text[], text, bigint),
    pgque.dead_letter_batch(bigint, bigint[], text, text, bigint),
    pgque.dead_letter_batch(bigint, bigint[], text[], text, bigint),
    pgque.event_retry(bigint, bigint, integer),
    pgque.event_retry(bigint, bigint, timestamptz),
    pgque.get_consumer_info(),
    pgque.get_consumer_info(text),
    pgque.get_consumer_info(text, text),
    pgque.list_scheduled(text, integer),
    pgque.dlq_export(text, bigint, integer),
    pgque.dlq_inspect(text, integer),
    pgque.dlq_summary(text),
    pgque.queue_stats(),
    pgque.unticked_events(text),
    pgque.consumer_stats(),
    pgque.queue_health(),
    pgque.in_flight(text),
    pgque.stuck_consumers(interval),
    pgque.throughput(text, interval, interval),
    pgque.error_rate(text, interval, interval),
    pgque.latency_percentiles(text, text, interval),
    pgque.otel_metrics()
to pgque_reader;

grant execute on function
    pgque.create_queue(text),
    pgque.create_queue(text, jsonb),
    pgque.pause_queue(text),
    pgque.resume_queue(text),
    pgque.drop_queue(text),
    pgque.drop_queue(text, boolean),
    pgque.set_queue_config(text, text, text),
    pgque.insert_event_raw(text, bigint, timestamptz, integer, integer,
                           text, text, text, text, text, text),
    pgque.batch_event_sql(bigint),
    pgque.batch_event_tables(bigint),
    pgque.get_batch_cursor(bigint, text, integer),
    pgque.get_batch_cursor(bigint, text, integer, text),
    pgque.event_retry_raw(text, text, timestamptz, bigint, timestamptz, integer,
                          text, text, text, text, text, text),
    pgque.batch_retry(bigint, integer),
    pgque.find_tick_helper(integer, bigint, timestamptz, bigint, bigint, interval),
    pgque.ticker(),
    pgque.ticker(text),
    pgque.ticker(text, bigint, timestamptz, bigint),
    pgque.force_tick(text),
    pgque.force_next_tick(text),
    pgque.set_tick_period_ms(integer),
    pgque.set_metadata_rotation_period(interval),
    pgque.set_snapshot_patience(interval),
    pgque.grant_perms(text),
    pgque.tune_storage(text),
    pgque.quote_fqname(text),
    pgque.seq_getval(text),
    pgque.seq_setval(text, bigint),
    pgque.upgrade_schema(),
    pgque.ticker_pace(),
    pgque.maint(),
    pgque.maint_rotate_tables_step1(text),
    pgque.maint_rotate_tables_step2(),
    pgque.maint_retry_events(),
    pgque.maint_deliver_delayed(),
    pgque.maint_idem(),
    pgque.maint_idem(text),
    pgque.maint_staging(),
    pgque.maint_event_tables(),
    pgque.maint_addon(text),
    pgque.maint_operations(),
    pgque.maint_tables_to_vacuum(),
    pgque.maint_rotate_metadata(),
    pgque.maint_rotate_metadata(text),
    pgque.maint_empty_half(text),
    pgque.maint_copy_ticks(),
    pgque.maint_compact_positions(),
    pgque.maint_compact_ticks(),
    pgque.maint_compact_counters(),
    pgque.maint_compact_history(),
    pgque.dlq_purge(text, interval),
    pgque.event_dead(bigint, bigint, text, timestamptz, xid8, integer,
                     text, text, text, text, text, text),
    pgque.test_send(text, jsonb),
    pgque.test_send(text, text, jsonb),
    pgque.test_consume(text, text, text),
    pgque.assert_empty(text),
    pgque.assert_dlq_empty(text),
    pgque.adopt_restored_database(),
    pgque.renew_lineage()
to pgque_admin;
grant execute on function
    pgque.begin_slot(interval),
    pgque.check_slot_end(timestamptz, interval),
    pgque.maint_pause(),
    pgque.next_beat(timestamptz, interval, timestamptz, bigint),
    pgque.run_maintenance(text, text),
    pgque.maint_cron_log(),
    pgque.start(),
    pgque.stop(),
    pgque.status()
to pgque_admin;
grant execute on procedure
    pgque.ticker_loop(),
    pgque.ticker_loop(interval),
    pgque.maint_loop(interval)
to pgque_admin;
