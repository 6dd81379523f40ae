"""Who may do what: writers publish, readers consume, administrators do everything."""

from tests.support.addons.messages import publish
from tests.support.queues.sql import Connection, refused

CALLS = {
    "pgque_writer": ("publish_message('t', '1')", "list_topics()"),
    "pgque_reader": (
        *("consume_message('q', 0)", "set_vt_batch('q', '{1}', '{x}', 1)"),
        *("ack_message_batch('q', '{1}', '{x}')", "get_queue_statistics()", "get_message(1)"),
        *("get_next_visible_time('q')", "list_messages('q')", "list_queues()", "list_topics()"),
        *("list_dlq_messages()", "extend_queue_keep_alive('q', '1 s')"),
    ),
    "pgque_admin": (
        *("create_topic('new')", "create_queue('new', 't')", "delete_queue('new')"),
        *("delete_inactive_queues()", "move_messages_to_dlq()", "requeue_dlq_messages('q')"),
        *("purge_dlq()", "cleanup_completed_messages()", "delete_queue_message('q', 1)"),
        *("clean_up_queue('q')", "clean_up_topic('t')", "purge_all_messages()"),
        *("log_topic('t')", "unlog_topic('t')", "maint()"),
    ),
}


def test_role_may_call_its_functions_and_no_others(q: Connection) -> None:
    publish(q, 1)
    for role in CALLS:
        q.execute(f"set role {role}".encode())
        for call in (call for calls in CALLS.values() for call in calls):
            sql = f"select * from postgremq.{call}"
            if role == "pgque_admin" or call in CALLS[role]:
                q.rows(sql)
            else:
                with refused("42501"):
                    q.rows(sql)
    q.execute("reset role")
    open_to_all = q.rows(
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace = 'postgremq'::regnamespace"
        " and has_function_privilege('public', p.oid, 'execute')"
    )
    assert open_to_all == []


def test_only_administrators_change_tables(q: Connection) -> None:
    q.execute("set role pgque_admin")
    q.execute("insert into postgremq.messages (topic_name, payload) values ('t', '1')")
    q.execute("update postgremq.queue_messages set processed_at = now()")
    q.execute("update postgremq.queues set keep_alive_until = null")
    changes = ["delete from postgremq." + name for name in ("messages", "queues", "topics")]
    for role in ("pgque_reader", "pgque_writer"):
        q.execute(f"set role {role}".encode())
        for change in changes:
            with refused("42501"):
                q.execute(change.encode())
    q.execute("set role pgque_admin")
    for change in changes:
        q.execute(change.encode())


def test_reader_sees_no_tokens_and_no_inner_tables(db: Connection) -> None:
    db.execute("set role pgque_reader")
    db.rows("select message_id, status, vt from postgremq.queue_messages")
    for what in ("consumer_token from postgremq.queue_messages", "* from postgremq.state"):
        with refused("42501"):
            db.rows(f"select {what}")


def test_writer_cannot_put_an_operator_in_front_of_ours(q: Connection) -> None:
    q.execute("create role mallory login in role pgque_writer")
    try:
        q.execute("create schema evil authorization mallory")
        writer = q.another()
        writer.execute("set session authorization mallory")
        for number, sign in enumerate(("=", "<>", ">", ">=", "<", "+", "-", "*", "&")):
            for kind in ("integer", "bigint", "text"):
                writer.execute(
                    f"create function evil.f_{number}(i {kind}, j {kind}) returns {kind}"
                    " language plpgsql"
                    " as $$ begin raise exception 'called as %', current_user; end $$;"
                    f" create operator evil.{sign}"
                    f" (function = evil.f_{number}, leftarg = {kind}, rightarg = {kind})".encode()
                )
        writer.execute("set search_path = evil, pg_catalog")
        later = "pg_catalog.now() operator(pg_catalog.+) '1 hour'::pg_catalog.interval"
        for argument in ("", f", {later}"):
            writer.value(f"select postgremq.publish_message('t', '1'{argument})")
        writer.execute("reset session authorization")
    finally:
        q.execute("drop schema if exists evil cascade")
        q.execute("drop owned by mallory")
        q.execute("drop role mallory")
