"""Many sessions at once: no message is lost, none is held by two consumers, and nobody waits."""

import psycopg
import pytest

from tests.addons.conftest import Another, Blocked, begun, with_snapshot
from tests.support.messages import (
    ack,
    bury,
    consume,
    drain,
    make_queue,
    nack,
    publish,
    publish_many,
    put_back,
    rotate,
    set_limit,
    states,
    statistics,
    switch,
)
from tests.support.queues import Connection, connect, refused, rows, value

OPEN_CHANGES = (
    "select * from postgremq.consume_message('q', 60)",
    "update postgremq.queue_messages set vt = now() where message_id = %(id)s",
    "select postgremq.ack_message('q', %(id)s, %(token)s)",
    "select postgremq.ack_message_batch('q', array[%(id)s::int], array[%(token)s::varchar])",
    "select postgremq.nack_message('q', %(id)s, %(token)s)",
    "select postgremq.release_message('q', %(id)s, %(token)s)",
    "select postgremq.set_vt('q', %(id)s, %(token)s, 60)",
    "select postgremq.delete_queue_message('q', %(id)s)",
)
CLEAN_UP = "select postgremq.cleanup_completed_messages(0)"


@pytest.mark.parametrize("part", [0, 1])
def test_nobody_waits_for_an_open_change_of_a_message(
    db: Connection, another: Another, part: int
) -> None:
    make_queue(db)
    value(db, "select setval('postgremq.turn', %s)", part)
    db.execute("set statement_timeout = '20s'")
    slow = another()
    for change in OPEN_CHANGES:
        first, _ = publish(db, 1, 2)
        begun(slow)
        # Its visibility time is over for everybody but this transaction, which began before it.
        (claim,) = consume(db, vt=0) if "token" in change else (None,)
        slow.execute(change.encode(), {"id": first, "token": claim and claim.token})
        assert drain(db) == [2], change
        slow.execute("rollback")
        assert drain(db) == [1], change


def test_claims_of_a_session_that_ends_come_again(db: Connection, database_url: str) -> None:
    make_queue(db)
    publish(db, *range(50))
    victim = begun(connect(database_url))
    assert len(consume(victim, limit=20)) == 20
    assert drain(db) == [*range(20, 50)]
    value(db, "select pg_terminate_backend(%s, 10000)", victim.info.backend_pid)
    victim.close()
    assert drain(db) == [*range(20)]


def test_publisher_that_commits_late_is_not_passed_over(db: Connection, another: Another) -> None:
    make_queue(db)
    late, early = begun(another()), with_snapshot(another())
    publish(late, 1, 2)
    for _ in range(3):
        publish(db, *range(100, 160))
        assert drain(db) == [*range(100, 160)]
    publish(late, 3)
    publish(early, 4)
    publish(db, *range(60))
    assert drain(db) == [*range(60)]
    late.execute("commit")
    assert drain(db) == [1, 2, 3]
    early.execute("commit")
    assert drain(db) == [4]


def test_claim_that_commits_after_its_visibility_time_comes_again(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, 1)
    slow = begun(another())
    (claim,) = consume(slow, vt=0)
    publish(db, *range(100, 200))
    drain(db)
    slow.execute("commit")
    (again,) = consume(db)
    assert (again.id, again.attempts) == (claim.id, 2)


def test_messages_published_and_answered_in_a_consumers_transaction_are_found(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    older = begun(another())
    value(older, "select pg_current_xact_id()")
    publish(db, *range(100))
    for _ in range(5):  # a floor is written now and then
        for claim in consume(older, limit=9):
            ack(older, claim)
        publish(db, *range(60))
        drain(db)
    publish(older, -1, -1, -1)
    older.execute("commit")
    assert drain(db) == [-1, -1, -1]


def test_repeatable_read_consumers_get_each_message_once(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2)
    one, two = with_snapshot(another()), with_snapshot(another())
    (first,) = consume(one)
    one.execute("commit")
    try:
        got = [claim.id for claim in consume(two)]
        two.execute("commit")
    except psycopg.errors.SerializationFailure:
        two.execute("rollback")
        got = []
    assert first.id not in got


def test_no_dead_rows_after_hundreds_of_changes(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(300))
    for claim in consume(db, limit=300):
        nack(db, claim)
    for claim in consume(db, limit=300):
        ack(db, claim)
    rows(db, "select pg_stat_force_next_flush()") if db.info.server_version >= 150000 else None
    sql = (
        "select relname, n_dead_tup, n_tup_upd, n_tup_del from pg_stat_user_tables"
        " where schemaname = 'postgremq' and relname ~ '^(state|floor|messages)'"
        " and (n_dead_tup > 0 or n_tup_upd > 0 or n_tup_del > 0)"
    )
    assert rows(db, sql) == []


def test_empty_poll_only_reads_and_steps_over_finished_messages_once(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(100))
    drain(db)
    db.execute("truncate postgremq.floor")
    for _ in range(3):
        assert consume(db) == []
    assert value(db, "select count(*) from postgremq.floor") == 1
    with db.transaction():
        assert consume(db) == []
        assert value(db, "select pg_current_xact_id_if_assigned()") is None
    publish(db, 1)
    assert drain(db) == [1]


def test_messages_that_a_floor_passes_while_a_session_holds_them_come_again(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, *range(20))
    slow = begun(another())
    assert len(consume(slow, limit=20)) == 20
    publish(db, *range(100, 200))
    drain(db)
    assert consume(db) == []
    slow.execute("rollback")
    assert drain(db) == [*range(20)]


def test_floor_of_another_cluster_is_not_used(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(150))
    drain(db)
    # As after a restore into a cluster with lower transaction ids.
    db.execute("update postgremq.floor set new_txid = '9999999999', origin_id = gen_random_uuid()")
    publish(db, 1, 2)
    assert drain(db) == [1, 2]


def cost_of_a_claim(db: Connection) -> int:
    """How many index entries a claim of 30 messages reads, after floors were written."""
    counter = (
        "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::int from pg_index"
        " where indrelid = 'postgremq.state_0'::regclass"
    )
    with db.transaction():
        for _ in range(2):
            publish(db, *range(30))
            before = value(db, counter)
            assert len(consume(db, limit=30)) == 30
            read: int = value(db, counter) - before
    return read


def test_floor_costs_the_same_after_any_history(db: Connection, another: Another) -> None:
    make_queue(db)
    publish_many(db, 3000)
    done = consume(db, vt=0, limit=None)
    sql = "select count(*) from postgremq.ack_message_batch('q', %s, %s::varchar[])"
    value(db, sql, [claim.id for claim in done], [claim.token for claim in done])
    assert consume(db) == []
    publish(begun(another()), 1)
    assert cost_of_a_claim(db) < 1000


def test_open_transaction_that_publishes_much_costs_consumers_nothing(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    bulk = begun(another())
    bulk.execute(
        "insert into postgremq.messages (topic_name, payload, deliver_after)"
        " select 't', to_jsonb(n), case when n % 2 = 0 then now() end"
        " from generate_series(1, 4000) n"
    )
    publish(db, *range(30))
    drain(db)
    assert cost_of_a_claim(db) < 1000
    bulk.execute("commit")
    assert len(consume(db, limit=None)) == 4000


def test_many_claims_of_an_open_transaction_hide_no_others(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish_many(db, 1000)
    assert len(consume(db, vt=0, limit=1000)) == 1000
    assert len(consume(begun(another()), limit=600)) == 600
    assert len(consume(db, limit=10)) == 10


# Administrators beside consumers, publishers and rotation.


def test_uninstall_counts_messages_whose_publishers_have_not_committed(
    db: Connection, another: Another, blocked: Blocked
) -> None:
    make_queue(db)
    publisher = begun(another())
    publish(publisher, 1)
    removal = blocked(rows, "select postgremq.uninstall()")
    publisher.execute("commit")
    with refused("PQ020", '"q"'):
        removal.result()
    assert drain(db) == [1]


def test_message_that_is_removed_while_it_is_archived_does_not_come_back(
    db: Connection, another: Another, blocked: Blocked
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    drain(db)
    switch(db)
    maintenance = begun(another())
    value(maintenance, "select postgremq.maint()")
    removal = blocked(value, "select postgremq.move_messages_to_dlq()")
    maintenance.execute("commit")
    assert removal.result() == 1
    assert states(db) == []
    value(db, "select postgremq.requeue_dlq_messages('q')")
    value(db, CLEAN_UP)
    assert drain(db) == [1]


@pytest.mark.parametrize("is_acked", [False, True])
def test_limit_is_changed_beside_a_consumer(
    db: Connection, another: Another, blocked: Blocked, is_acked: bool
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    claims = consume(db) if is_acked else []
    slow = begun(another())
    if is_acked:
        ack(slow, claims[0])
    else:
        consume(slow, vt=0)
    change = blocked(set_limit, 5)
    slow.execute("commit")
    change.result()
    assert drain(db) == ([] if is_acked else [1])
    assert statistics(db) == (0, 0, 1, 1)


def test_change_of_the_limit_gives_up_beside_an_open_consumer(
    db: Connection, another: Another
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    slow = begun(another())
    (claim,) = consume(slow)
    with refused("55P03", "open transactions have claimed", "Try again"):
        set_limit(db, 5)
    assert value(db, "select max_delivery_attempts from postgremq.queues") == 1
    ack(slow, claim)
    slow.execute("commit")
    set_limit(db, 5)
    assert drain(db) == [2]


@pytest.mark.parametrize("limit", [1, 5])
def test_claim_with_a_snapshot_from_before_a_change_of_the_limit(
    db: Connection, another: Another, limit: int
) -> None:
    make_queue(db, max_attempts=2)
    publish(db, 1)
    consume(db, vt=0)
    slow = with_snapshot(another())
    set_limit(db, limit)
    with refused("40001"):
        consume(slow, vt=0)
    slow.execute("rollback")
    assert len(consume(with_snapshot(slow))) == (limit > 1)


def test_answer_with_a_snapshot_from_before_a_change_of_the_limit(
    db: Connection, another: Another
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    (claim,) = consume(db)
    slow = another()
    answers = (
        "nack_message('q', %s, %s)",
        "release_message('q', %s, %s)",
        "set_vt('q', %s, %s, 1)",
    )
    for limit, answer in enumerate(answers, 2):
        with_snapshot(slow)
        set_limit(db, limit)
        with refused("40001"):
            rows(slow, f"select postgremq.{answer}", claim.id, claim.token)
        slow.execute("rollback")
    nack(db, claim)
    assert drain(db) == [1]


def test_raw_change_beside_a_change_of_the_limit(
    db: Connection, another: Another, blocked: Blocked
) -> None:
    make_queue(db, max_attempts=1)
    make_queue(db, "p")
    (id_,) = publish(db, 7)
    lock = begun(another())
    bury(lock, id_, "p")
    sql = "update postgremq.queue_messages set delivery_attempts = 1 where queue_name = 'q'"
    change = blocked(lambda slow: slow.execute(sql))
    db.execute("update postgremq.queues set max_delivery_attempts = 5 where name = 'q'")
    lock.execute("rollback")
    change.result()
    assert drain(db) == [7]


def test_update_of_claims_does_not_take_back_an_ack_that_is_newer(
    db: Connection, another: Another, blocked: Blocked
) -> None:
    make_queue(db)
    publish(db, 1, 2)
    first, second = consume(db, limit=2)
    slow = begun(another())
    ack(slow, first)
    change = blocked(put_back, "status = 'processing'")
    ack(db, second)
    slow.execute("rollback")
    with refused("40001"):
        change.result()
    assert [row[1] for row in states(db)] == ["processing", "completed"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_message_that_is_put_back_while_a_cleanup_waits(
    db: Connection, another: Another, blocked: Blocked, end: str
) -> None:
    make_queue(db)
    publish(db, 1, 2, 3)
    drain(db)
    first = begun(another())
    put_back(first, "message_id = 1")
    removed = blocked(value, CLEAN_UP)
    put_back(db, "message_id = 2")
    first.execute(end)
    assert removed.result() == (1 if end == "commit" else 2)
    assert drain(db) == ([1, 2] if end == "commit" else [2])


def test_cleanup_counts_archived_messages_once(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2)
    drain(db)
    with_snapshot(another())
    rotate(db)
    publish(db, 3)
    drain(db)
    assert value(db, CLEAN_UP) == 3
    assert states(db) == []


def test_row_that_two_sessions_insert_beside_a_rotation_is_one_message(
    db: Connection, another: Another, blocked: Blocked
) -> None:
    make_queue(db)
    publish(db, 1)
    value(db, "select postgremq.clean_up_queue('q')")
    rotate(db)
    insert = "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 1)"
    first = begun(another())
    first.execute(insert)
    switch(db)
    insertion = blocked(lambda second: second.execute(insert))
    first.execute("commit")
    with refused("23505"):
        insertion.result()
    assert drain(db) == [1]


def test_change_under_a_snapshot_that_may_not_see_what_was_archived(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    drain(db)
    bury(db, 1)
    for change in (
        "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 9)",
        "update postgremq.queue_messages set status = 'pending', delivery_attempts = 0",
        "delete from postgremq.queue_messages",
        "delete from postgremq.messages",
        CLEAN_UP,
        "select postgremq.move_messages_to_dlq()",
        "select postgremq.requeue_dlq_messages('q')",
        "select postgremq.uninstall()",
        "update postgremq.queues set max_delivery_attempts = 5",
    ):
        with_snapshot(db)
        with refused("PQ013"):
            db.execute(change.encode())
        db.execute("rollback")
