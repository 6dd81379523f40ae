"""Many sessions at once: no message is lost, and none is held by two consumers."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.messages import ack, consume, drain, make_queue, nack, publish, release, rotate
from tests.support.queues import Connection, connect, rows, value

Another = Callable[[], Connection]


def test_open_claim_hides_a_message_but_nobody_waits_for_it(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, 1, 2)
    slow = another()
    slow.execute("begin")
    assert [claim.payload for claim in consume(slow)] == [1]
    db.execute("set statement_timeout = '10s'")
    assert drain(db) == [2]
    slow.execute("rollback")
    assert drain(db) == [1]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        "postgremq.ack_message('q', %(id)s, %(token)s)",
        "postgremq.ack_message_batch('q', array[%(id)s::int], array[%(token)s::varchar])",
        "postgremq.nack_message('q', %(id)s, %(token)s)",
        "postgremq.release_message('q', %(id)s, %(token)s)",
        "postgremq.set_vt('q', %(id)s, %(token)s, 60)",
        "postgremq.delete_queue_message('q', %(id)s)",
    ],
)
def test_nobody_waits_for_an_open_answer_whose_visibility_time_is_over(
    db: Connection, another: Another, part: int, change: str
) -> None:
    make_queue(db)
    value(db, "select setval('postgremq.turn', %s)", part)
    publish(db, 1, 2)
    (claim,) = consume(db, vt=1)
    slow = another()
    slow.execute("begin")
    slow.execute(f"select {change}".encode(), {"id": claim.id, "token": claim.token})
    value(db, "select pg_sleep(1.1)")
    db.execute("set statement_timeout = '5s'")
    assert drain(db) == [2]
    slow.execute("rollback")
    assert drain(db) == [1]


def test_nobody_waits_for_an_open_change_of_a_row(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2)
    slow = another()
    slow.execute("begin")
    slow.execute("update postgremq.queue_messages set vt = now() where message_id = 1")
    db.execute("set statement_timeout = '5s'")
    assert drain(db) == [2]
    slow.execute("rollback")
    assert drain(db) == [1]


def test_claims_of_a_session_that_ends_come_again(db: Connection, database_url: str) -> None:
    make_queue(db)
    publish(db, *range(50))
    victim = connect(database_url)
    victim.execute("begin")
    assert len(consume(victim, limit=20)) == 20
    assert drain(db) == [*range(20, 50)]
    value(db, "select pg_terminate_backend(%s, 10000)", victim.info.backend_pid)
    victim.close()
    assert drain(db) == [*range(20)]


def test_publisher_that_commits_late_is_not_passed_over(db: Connection, another: Another) -> None:
    make_queue(db)
    late = another()
    late.execute("begin")
    publish(late, 1, 2)
    for _ in range(3):
        publish(db, *range(100, 160))
        assert drain(db) == [*range(100, 160)]
    publish(late, 3)
    late.execute("commit")
    assert drain(db) == [1, 2, 3]


def test_transaction_that_reads_early_and_publishes_late_is_not_passed_over(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    late = another()
    late.execute("begin isolation level repeatable read")
    rows(late, "select 1")
    publish(db, *range(60))
    drain(db)
    publish(late, 1)
    publish(db, *range(60))
    drain(db)
    late.execute("commit")
    assert drain(db) == [1]


def test_claim_that_commits_after_its_visibility_time_comes_again(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, 1)
    slow = another()
    slow.execute("begin")
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
    older = another()
    older.execute("begin")
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
    one, two = another(), another()
    for session in (one, two):
        session.execute("begin isolation level repeatable read")
        rows(session, "select 1")
    (first,) = consume(one)
    one.execute("commit")
    try:
        got = [claim.id for claim in consume(two)]
        two.execute("commit")
    except psycopg.errors.SerializationFailure:
        two.execute("rollback")
        got = []
    assert first.id not in got


def test_sixteen_consumers_share_messages_without_double_or_loss(
    db: Connection, database_url: str
) -> None:
    make_queue(db)
    expected = 600
    done = threading.Event()

    def produce(start: int) -> None:
        with connect(database_url) as own:
            for number in range(start, start + expected // 4):
                with own.transaction():
                    publish(own, number)

    def work(number: int) -> list[int]:
        got: list[int] = []
        turn = 0
        with connect(database_url) as own:
            while not done.is_set():
                claims = consume(own, limit=1 + number % 4)
                for claim in claims:
                    turn += 1
                    if turn % 7 == 0:
                        nack(own, claim)
                    elif turn % 7 == 1:
                        release(own, claim)
                    else:
                        ack(own, claim)
                        got.append(claim.payload)
                if not claims:
                    (left,) = rows(
                        own,
                        "select pending_count + processing_count, total_count"
                        " from postgremq.get_queue_statistics('q')",
                    )
                    if left == (0, expected):
                        done.set()
        return got

    def maintain() -> None:
        with connect(database_url) as own:
            while not done.wait(0.3):
                rotate(own)

    with ThreadPoolExecutor(24) as pool:
        maintenance = pool.submit(maintain)
        producers = [pool.submit(produce, expected // 4 * n) for n in range(4)]
        consumers = [pool.submit(work, number) for number in range(16)]
        for future in producers:
            future.result(timeout=120)
        got = Counter(payload for future in consumers for payload in future.result(timeout=120))
        maintenance.result(timeout=120)
    assert got == Counter(range(expected))


def test_no_dead_rows_after_thousands_of_changes(db: Connection) -> None:
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


def test_empty_poll_only_reads(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(100))
    drain(db)
    consume(db)
    db.execute("begin")
    assert consume(db) == []
    assert value(db, "select pg_current_xact_id_if_assigned()") is None
    db.execute("commit")


def test_poll_that_steps_over_many_finished_messages_does_so_once(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(100))
    drain(db)
    db.execute("truncate postgremq.floor")
    for _ in range(3):
        assert consume(db) == []
    assert value(db, "select count(*) from postgremq.floor") == 1
    publish(db, 1)
    assert drain(db) == [1]


def test_messages_that_a_floor_passes_while_a_session_holds_them_come_again(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, *range(20))
    slow = another()
    slow.execute("begin")
    assert len(consume(slow, limit=20)) == 20
    publish(db, *range(100, 200))
    drain(db)
    assert consume(db) == []
    slow.execute("rollback")
    assert drain(db) == [*range(20)]


def test_floor_costs_the_same_after_any_history(db: Connection, another: Another) -> None:
    make_queue(db)
    db.execute(
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', to_jsonb(n) from generate_series(1, 3000) n"
    )
    done = consume(db, vt=0, limit=None)
    sql = "select count(*) from postgremq.ack_message_batch('q', %s, %s::varchar[])"
    value(db, sql, [claim.id for claim in done], [claim.token for claim in done])
    assert consume(db) == []
    late = another()
    late.execute("begin")
    publish(late, 1)
    counter = (
        "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::int from pg_index"
        " where indrelid = 'postgremq.state_0'::regclass"
    )
    db.execute("begin")
    for _ in range(2):  # floors that list the transaction above, and search its rows again
        publish(db, *range(30))
        before = value(db, counter)
        assert len(consume(db, limit=30)) == 30
        read = value(db, counter) - before
    db.execute("commit")
    assert read < 1000


def test_open_transaction_that_publishes_much_costs_consumers_nothing(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    bulk = another()
    bulk.execute("begin")
    bulk.execute(
        "insert into postgremq.messages (topic_name, payload, deliver_after)"
        " select 't', to_jsonb(n), case when n % 2 = 0 then now() end"
        " from generate_series(1, 4000) n"
    )
    publish(db, *range(30))
    drain(db)
    counter = (
        "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::int from pg_index"
        " where indrelid = 'postgremq.state_0'::regclass"
    )
    db.execute("begin")
    for _ in range(2):
        publish(db, *range(30))
        before = value(db, counter)
        assert len(consume(db, limit=30)) == 30
        read = value(db, counter) - before
    db.execute("commit")
    assert read < 1000
    bulk.execute("commit")
    assert len(consume(db, limit=None)) == 4000
