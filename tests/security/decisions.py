"""Who may call what, decided for every function by its name.

A function that stands nowhere here fails the tests: decide, and grant it in sql/ops/grants.sql (or
not, if it is internal).
"""

READER = """
ack ack_batch ack_partitioned batch_has_events batch_read_plan check_filenode claim_batch claim_coop
claim_slot claim_ticks consumer_states consumer_stats dead_letter_batch dlq_export dlq_inspect
dlq_summary enter_deployment error_rate event_retry finish_batch finished_before forget_replicated
get_batch_events get_batch_info get_consumer_info get_lease_info give_up_batch hold_batch in_flight
incarnation lineage list_scheduled move_to_deployment nack name_replicas nack_batch
nack_partitioned next_batch
next_batch_custom next_batch_info next_tick note_location note_replicas note_verified open_to_claim
otel_metrics queue_health queue_stats receive receive_coop receive_partitioned
register_consumer register_consumer_at
register_subconsumer registration_losses consumer_waits
release_batch release_slot renew_batch repartition replicas replicated_tables retained_ticks seek
set_aside_epoch set_events_aside set_partition_policy set_replicated slot_of_key stuck_consumers
subscribe subscribe_slot subscribe_slots subscribe_subconsumer throughput tick_fingerprint
tick_range_read_plan touch_subconsumer unregister_consumer unregister_subconsumer unsubscribe
unsubscribe_slot unsubscribe_subconsumer unticked_events window_ticks
has_table_due note_stored set_apart stored_ticks tables_apart
"""
WRITER = """
abort_staging cancel_scheduled current_event_table dlq_replay dlq_replay_all dlq_replay_matching
insert_event insert_event_bulk open_staging publish_staging relays send send_at
send_batch send_idem snapshot_tick staging_table
"""
# Trigger functions, and what they call with the rights of whoever changes the row. None of them is
# security definer, and none does what a writer could not do by himself.
TRIGGERS = """
fill_fields
capture capture_columns capture_gap capture_relations capture_rows capture_settings capture_table
captured_name has_left note_captured captured_tables change_fragment change_type check_captured
check_change_key check_trigger describe_change jsontriga key_of_table logutriga publish_table
read_arguments refuse_trigger relay_gap relayed_tables row_as_text
send_change source_columns split_row sqltriga table_columns table_facts
table_shape trigger_expressions types_within uncapture url_encode
"""
# A trigger function, whose creation needs the right. It runs as the owner, whoever changes the row.
TRIGGER_OF_THE_OWNER = "capture_change"
READER_AND_WRITER = "different_options get_queue_info replicated_by version"
ADMIN = """
adopt_restored_database batch_event_sql batch_event_tables batch_retry begin_slot create_queue
dlq_purge drop_queue event_dead event_retry_raw find_tick_helper force_next_tick force_tick
get_batch_cursor grant_perms insert_event_raw maint maint_addon maint_compact_counters
maint_compact_positions maint_compact_ticks maint_copy_ticks maint_cron_log maint_deliver_delayed
maint_empty_half maint_event_tables maint_idem maint_loop maint_operations maint_pause
maint_retry_events maint_rotate_tables_step1 maint_rotate_tables_step2 maint_staging
maint_tables_to_vacuum next_beat next_run_hint pause_queue quote_fqname relay_state relay_to
renew_incarnation renew_lineage resume_queue run_maintenance seq_getval seq_setval
set_queue_config set_relay set_snapshot_patience set_tick_period_ms start status stop ticker
ticker_loop ticker_pace tune_storage upgrade_schema
"""
# For the owner of the schema alone: no role may remove all queues.
OWNER = "uninstall"
# Called by other functions only, which have checked what these trust.
INTERNAL = """
append_position apply_disable_insert are_ticks_obsolete asset_name attach_event_table batch_select
begin_incarnation begin_positions build_functions capture_condition capture_truncate captured_rows
check_adopted check_batch_limits check_claimed
check_lease
check_lease_holder check_logs_visible check_may_settle check_options check_position
check_positions_visible check_read_committed check_reasons check_slot_count check_staging_role
check_tick check_tick_half check_uncaptured close_batch
commit_locally count_between count_dead_letters count_end
count_move count_retries create_event_parent create_log cron_database cron_jobs cron_statements
describe_batch drop_staging_table empty_event_table end_subconsumer event_bytes events_between
find_batch find_cron find_dead_subconsumer find_event_seq find_floor_tick
find_passed_tick
find_leased_batch find_leased_slot find_newest_tick find_next_tick find_oldest_tick find_origin
find_position find_queue find_retained_tick find_retention_tick find_slot find_subconsumer
find_subscription find_subscription_ids find_tick find_tick_before find_truncation_floor
first_event_time follow_timeline
grant_execute hand_over has_cron hold_tick is_seen_by_all is_timeline_followed is_written_since
keep_tick_history left_table_health limit_to_change lock_holders lock_tables log_health
look_for_queue look_for_subscription maint_steps make_ticks move_positions next_batch_id open_batch
open_batches open_coop_batch open_event_tables owner_condition pick_events plan_slices
purge_cron_log purge_idem raise_event_ids
read_messages read_timeline refuse_cooperative refuse_downgrade
waiting_since refuse_insert refuse_locked refuse_parameter
refuse_send_idem refuse_slot refuse_staging
refuse_tick refuse_unpartitioned refuse_value register_slots remove_jobs renumber_events
renumber_positions resend_dead_letter rotation_interval rotation_obstacle scheduler_status
seqs_in_use set_lock_wait settle_events settle_floor slice_from slot_end
stop_slots subconsumer_name subscribe_slots_at table_locks tick_snapshot time_buckets
"""

DECISIONS: dict[str, frozenset[str]] = {
    name: frozenset(roles)
    for names, roles in (
        (READER, ["pgque_reader"]),
        (WRITER, ["pgque_writer"]),
        (TRIGGERS, ["pgque_writer"]),
        (TRIGGER_OF_THE_OWNER, ["pgque_writer"]),
        (READER_AND_WRITER, ["pgque_reader", "pgque_writer"]),
        (ADMIN, ["pgque_admin"]),
        (OWNER, []),
        (INTERNAL, []),
        # What each queue has for itself; N stands for its number.
        ("event_N_read event_N_tables", []),
    )
    for name in names.split()
}
