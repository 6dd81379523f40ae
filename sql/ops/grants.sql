-- The last file: revokes everything that the earlier files created from PUBLIC, and grants each
-- role its functions. Functions that are not listed below are internal.
revoke all on schema pgque from public;
revoke all on all tables in schema pgque from public;
revoke all on all sequences in schema pgque from public;
revoke all on all routines in schema pgque from public;

grant usage on schema pgque to pgque_reader, pgque_writer, pgque_admin;

-- Earlier versions granted other rights.
revoke all on
    pgque.queue, pgque.consumer, pgque.tick, pgque.subscription, pgque.retry_queue,
    pgque.event_template, pgque.idem
from pgque_reader, pgque_writer, pgque_admin;

-- Waiting payloads may be read by roles that read payloads.
grant select on
    pgque.config, pgque.dead_letter, pgque.delayed_events, pgque.retry_queue,
    pgque.partition_consumer, pgque.partition_slot, pgque.partition_slot_status
to pgque_reader, pgque_admin;

grant select on
    pgque.queue, pgque.consumer, pgque.tick, pgque.subscription, pgque.event_template, pgque.addon
to pgque_reader, pgque_writer, pgque_admin;

-- It shows every producer's keys.
grant select on pgque.idem to pgque_admin;

-- The functions that a role may call, by name: all functions of a name, or none.
do $$
declare
    v record;
begin
    for v in
        select g.roles, p.oid::regprocedure as routine
        from (values
            ('pgque_reader, pgque_writer',
             'different_options get_queue_info replicated_by version'),
            ('pgque_writer',
             'abort_staging cancel_scheduled current_event_table dlq_replay dlq_replay_all
             dlq_replay_matching insert_event insert_event_bulk open_staging publish_staging
             relays send send_at send_batch send_idem snapshot_tick source_columns staging_table
             table_facts table_shape'),
            -- The triggers, except capture_change, run as the role that changes the row, and so do the
            -- functions that they call.
            ('pgque_writer',
             'capture capture_change capture_columns capture_gap capture_relations capture_rows
             capture_settings capture_table captured_name has_left note_captured
             captured_tables change_fragment change_type check_captured fill_fields
             check_change_key check_trigger describe_change jsontriga key_of_table
             logutriga publish_table read_arguments refuse_trigger relay_gap relayed_tables row_as_text
             send_change split_row sqltriga
             table_columns trigger_expressions types_within uncapture url_encode'),
            ('pgque_reader',
             'ack ack_batch ack_partitioned batch_has_events batch_read_plan check_filenode claim_batch
             claim_coop claim_slot claim_ticks consumer_states consumer_stats dead_letter_batch
             dlq_export dlq_inspect dlq_summary enter_deployment error_rate event_retry finish_batch
             finished_before forget_replicated get_batch_events get_batch_info get_consumer_info
             get_lease_info give_up_batch has_table_due hold_batch in_flight incarnation lineage list_scheduled
             move_to_deployment nack name_replicas nack_batch nack_partitioned next_batch next_batch_custom
             next_batch_info next_tick note_location note_replicas note_stored note_verified open_to_claim
             otel_metrics queue_health queue_stats receive receive_coop
             receive_partitioned register_consumer register_consumer_at register_subconsumer
             release_batch release_slot renew_batch repartition replicas replicated_tables retained_ticks
             consumer_waits registration_losses seek set_apart set_aside_epoch set_events_aside
             set_partition_policy set_replicated
             slot_of_key stored_ticks stuck_consumers subscribe subscribe_slot subscribe_slots
             subscribe_subconsumer throughput tick_fingerprint tick_range_read_plan touch_subconsumer
             unregister_consumer unregister_subconsumer unsubscribe unsubscribe_slot
             unsubscribe_subconsumer unticked_events tables_apart window_ticks'),
            ('pgque_admin',
             'adopt_restored_database batch_event_sql batch_event_tables batch_retry begin_slot
             create_queue dlq_purge drop_queue event_dead event_retry_raw find_tick_helper
             force_next_tick force_tick get_batch_cursor grant_perms insert_event_raw maint
             maint_addon maint_compact_counters maint_compact_positions maint_compact_ticks
             maint_copy_ticks maint_cron_log maint_deliver_delayed maint_empty_half maint_event_tables
             maint_idem maint_loop maint_operations maint_pause maint_retry_events
             maint_rotate_tables_step1 maint_rotate_tables_step2 maint_staging maint_tables_to_vacuum
             next_beat next_run_hint pause_queue quote_fqname relay_state relay_to renew_incarnation
             renew_lineage resume_queue run_maintenance seq_getval seq_setval set_queue_config set_relay
             set_snapshot_patience set_tick_period_ms start status stop ticker ticker_loop ticker_pace tune_storage
             upgrade_schema')
        ) g (roles, names)
        cross join regexp_split_to_table(g.names, '\s+') n (name)
        left join pg_proc p on p.pronamespace = 'pgque'::regnamespace and p.proname = n.name
    loop
        execute format('grant execute on routine %s to %s',  -- quoted: regprocedure, or above
                       v.routine::text, v.roles);
    end loop;
end;
$$;
