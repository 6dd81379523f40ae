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

grant execute on function
    postgremq.publish_message(varchar, jsonb, timestamptz),
    postgremq.list_topics()
to pgque_writer, pgque_admin;

grant execute on function
    postgremq.consume_message(varchar, integer, integer),
    postgremq.ack_message(varchar, integer, varchar),
    postgremq.ack_message_batch(varchar, integer[], varchar[]),
    postgremq.nack_message(varchar, integer, varchar, timestamptz),
    postgremq.release_message(varchar, integer, varchar),
    postgremq.set_vt(varchar, integer, varchar, integer),
    postgremq.set_vt_batch(varchar, integer[], varchar[], integer),
    postgremq.extend_queue_keep_alive(varchar, interval),
    postgremq.get_next_visible_time(varchar),
    postgremq.get_queue_statistics(varchar),
    postgremq.get_message(integer),
    postgremq.list_messages(varchar),
    postgremq.list_dlq_messages(),
    postgremq.list_queues(),
    postgremq.list_topics()
to pgque_reader, pgque_admin;

grant execute on function
    postgremq.create_topic(varchar),
    postgremq.create_queue(varchar, varchar, integer, boolean, integer),
    postgremq.delete_topic(varchar),
    postgremq.delete_queue(varchar),
    postgremq.delete_queue_message(varchar, integer),
    postgremq.delete_inactive_queues(),
    postgremq.clean_up_queue(varchar),
    postgremq.clean_up_topic(varchar),
    postgremq.cleanup_completed_messages(integer),
    postgremq.purge_all_messages(),
    postgremq.purge_dlq(),
    postgremq.move_messages_to_dlq(),
    postgremq.requeue_dlq_messages(varchar),
    postgremq.distribute_message(),
    postgremq.log_topic(varchar),
    postgremq.unlog_topic(varchar),
    postgremq.maint(),
    postgremq.uninstall(boolean)
to pgque_admin;
