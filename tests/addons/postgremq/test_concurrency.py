"""Many sessions at once: no message is lost, none is held by two consumers, and nobody waits."""

import psycopg
import pytest

from tests.addons.conftest import begun
from tests.support.addons.messages import ack, consume, drain, nack, publish, publish_many
from tests.support.queues.sql import Connection

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


@pytest.mark.parametrize("part", [0, 1])
def test_nobody_waits_for_an_open_change_of_a_message(q: Connection, part: int) -> None:
    q.value("select setval('postgremq.turn', %s)", part)
    q.execute("set statement_timeout = '20s'")
    slow = q.another()
    for change in OPEN_CHANGES:
        first, _ = publish(q, 1, 2)
        begun(slow)
        # Its visibility time is over for everybody but this transaction, which began before it.
        (claim,) = consume(q, vt=0) if "token" in change else (None,)
        slow.execute(change.encode(), {"id": first, "token": claim and claim.token})
        assert drain(q) == [2], change
        slow.execute("rollback")
        assert drain(q) == [1], change


def test_publisher_that_commits_late_is_not_passed_over(q: Connection) -> None:
    late, early = begun(q.another()), q.another().hold_snapshot()
    publish(late, 1, 2)
    for _ in range(3):
        publish(q, *range(100, 160))
        assert drain(q) == [*range(100, 160)]
    publish(late, 3)
    publish(early, 4)
    publish(q, *range(60))
    assert drain(q) == [*range(60)]
    late.execute("commit")
    assert drain(q) == [1, 2, 3]
    early.execute("commit")
    assert drain(q) == [4]


def test_claim_that_commits_after_its_visibility_time_comes_again(q: Connection) -> None:
    publish(q, 1)
    slow = begun(q.another())
    (claim,) = consume(slow, vt=0)
    publish(q, *range(100, 200))
    drain(q)
    slow.execute("commit")
    (again,) = consume(q)
    assert (again.id, again.attempts) == (claim.id, 2)


def test_messages_published_and_answered_in_a_consumers_transaction_are_found(
    q: Connection,
) -> None:
    older = begun(q.another())
    older.value("select pg_current_xact_id()")
    publish(q, *range(100))
    for _ in range(5):  # a floor is written now and then
        for claim in consume(older, limit=9):
            ack(older, claim)
        publish(q, *range(60))
        drain(q)
    publish(older, -1, -1, -1)
    older.execute("commit")
    assert drain(q) == [-1, -1, -1]


def test_repeatable_read_consumers_get_each_message_once(q: Connection) -> None:
    publish(q, 1, 2)
    one, two = q.another().hold_snapshot(), q.another().hold_snapshot()
    (first,) = consume(one)
    one.execute("commit")
    try:
        got = [claim.id for claim in consume(two)]
        two.execute("commit")
    except psycopg.errors.SerializationFailure:
        two.execute("rollback")
        got = []
    assert first.id not in got


def test_no_dead_rows_after_hundreds_of_changes(q: Connection) -> None:
    publish(q, *range(300))
    for claim in consume(q, limit=300):
        nack(q, claim)
    for claim in consume(q, limit=300):
        ack(q, claim)
    q.rows("select pg_stat_force_next_flush()") if q.info.server_version >= 150000 else None
    sql = (
        "select relname, n_dead_tup, n_tup_upd, n_tup_del from pg_stat_user_tables"
        " where schemaname = 'postgremq' and relname ~ '^(state|floor|messages)'"
        " and (n_dead_tup > 0 or n_tup_upd > 0 or n_tup_del > 0)"
    )
    assert q.rows(sql) == []


def test_empty_poll_only_reads_and_steps_over_finished_messages_once(q: Connection) -> None:
    publish(q, *range(100))
    drain(q)
    q.execute("truncate postgremq.floor")
    for _ in range(3):
        assert consume(q) == []
    assert q.value("select count(*) from postgremq.floor") == 1
    with q.transaction():
        assert consume(q) == []
        assert q.value("select pg_current_xact_id_if_assigned()") is None
    publish(q, 1)
    assert drain(q) == [1]


def test_floor_of_another_cluster_is_not_used(q: Connection) -> None:
    publish(q, *range(150))
    drain(q)
    # As after a restore into a cluster with lower transaction ids.
    q.execute(
        "update postgremq.floor set due_at = 9223372036854775806, origin_id = gen_random_uuid()"
    )
    publish(q, 1, 2)
    assert drain(q) == [1, 2]


def cost_of_a_claim(db: Connection) -> int:
    """How many index entries a claim of 30 messages reads, after floors were written."""
    counter = (
        "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::int from pg_index"
        " where indrelid = 'postgremq.state_0'::regclass"
    )
    with db.transaction():
        for _ in range(2):
            publish(db, *range(30))
            before = db.value(counter)
            assert len(consume(db, limit=30)) == 30
            read: int = db.value(counter) - before
    return read


def test_floor_costs_the_same_after_any_history(q: Connection) -> None:
    publish_many(q, 3000)
    done = consume(q, vt=0, limit=None)
    sql = "select count(*) from postgremq.ack_message_batch('q', %s, %s::varchar[])"
    q.value(sql, [claim.id for claim in done], [claim.token for claim in done])
    assert consume(q) == []
    publish(begun(q.another()), 1)
    assert cost_of_a_claim(q) < 1000


def test_open_transaction_that_publishes_much_costs_consumers_nothing(q: Connection) -> None:
    bulk = begun(q.another())
    bulk.execute(
        "insert into postgremq.messages (topic_name, payload, deliver_after)"
        " select 't', to_jsonb(n), case when n % 2 = 0 then now() end"
        " from generate_series(1, 4000) n"
    )
    publish(q, *range(30))
    drain(q)
    assert cost_of_a_claim(q) < 1000
    bulk.execute("commit")
    assert len(consume(q, limit=None)) == 4000


def test_many_claims_of_an_open_transaction_hide_no_others(q: Connection) -> None:
    publish_many(q, 1000)
    assert len(consume(q, vt=0, limit=1000)) == 1000
    holder = begun(q.another())
    assert len(consume(holder, limit=600)) == 600
    assert len(consume(q, limit=30)) == 30  # and writes a floor
    holder.execute("rollback")
    assert len(consume(q, limit=None)) == 970


def test_clock_that_was_set_back_delays_no_message(q: Connection) -> None:
    ahead = "(extract(epoch from now() + interval '1 hour') * 1000000)::bigint"
    q.value(f"select setval('postgremq.barrier', {ahead})")
    q.value("select postgremq.publish_message('t', '1', now() + interval '10 minutes')")
    publish(q, 2)
    assert drain(q) == [2]
