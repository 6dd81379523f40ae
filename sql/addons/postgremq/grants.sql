-- The last file: revokes everything that the earlier files created from PUBLIC, and grants each
-- role its functions. Functions that are in no list below are internal.
revoke all on schema postgremq from public;
revoke all on all tables in schema postgremq from public;
revoke all on all sequences in schema postgremq from public;
revoke all on all routines in schema postgremq from public;

grant usage on schema postgremq to pgque_reader, pgque_writer, pgque_admin;

-- A reader may consume every queue, so it may see every message. Tokens are not shown to it: they
-- would let it answer for another consumer.
grant select on
    postgremq.topics, postgremq.queues, postgremq.messages, postgremq.dead_letter_queue
to pgque_reader, pgque_admin;
grant select (queue_name, message_id, status, published_at, vt, delivery_attempts, processed_at)
on postgremq.queue_messages to pgque_reader;
grant select on postgremq.queue_messages to pgque_admin;

grant insert, update, delete on
    postgremq.topics, postgremq.queues, postgremq.queue_messages, postgremq.dead_letter_queue
to pgque_admin;
grant insert, delete on postgremq.messages to pgque_admin;
grant usage on sequence postgremq.messages_id_seq to pgque_admin;

select pgque.grant_execute('postgremq', 'pgque_writer, pgque_admin',
    'publish_message list_topics');

select pgque.grant_execute('postgremq', 'pgque_reader, pgque_admin',
    'consume_message ack_message ack_message_batch nack_message release_message set_vt
    set_vt_batch extend_queue_keep_alive get_next_visible_time get_queue_statistics
    get_message list_messages list_dlq_messages list_queues list_topics');

select pgque.grant_execute('postgremq', 'pgque_admin',
    'create_topic create_queue delete_topic delete_queue delete_queue_message
    delete_inactive_queues clean_up_queue clean_up_topic cleanup_completed_messages
    purge_all_messages purge_dlq move_messages_to_dlq requeue_dlq_messages distribute_message
    log_topic unlog_topic maint uninstall');
