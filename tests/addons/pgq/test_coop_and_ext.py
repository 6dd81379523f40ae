"""pgq_coop and pgq_ext behave as PgQ's, step by step."""

import pytest

from tests.support.queues.sql import Connection


@pytest.fixture
def shared(db: Connection) -> Connection:
    """A queue with two subconsumers, and a batch for each."""
    db.value("select pgq.create_queue('q')")
    for worker in ("one", "two"):
        register = "select pgq_coop.register_subconsumer('q', 'shared', %s)"
        assert [db.value(register, worker) for _ in range(2)] == [1, 0]
    for payload in ("a", "b"):
        db.value("select pgq.insert_event('q', 't', %s)", payload)
        db.tick()
    return db


def batch_of(db: Connection, worker: str, *limits: str, form: str = "next_batch") -> int | None:
    arguments = ", ".join(("'q', 'shared', %s", *limits))
    return db.value(f"select pgq_coop.{form}({arguments})", worker)


def payloads(db: Connection, batch: int | None) -> list[str]:
    return [text for (text,) in db.rows("select ev_data from pgq.get_batch_events(%s)", batch)]


def test_limits_of_a_batch(shared: Connection) -> None:
    for limits, expected in (
        (("'1 hour'", "null", "null"), []),
        (("null", "3", "null"), []),
        (("null", "null", "'1 hour'", "'1 hour'"), []),
        (("null", "2", "null"), ["a", "b"]),
    ):
        batch = batch_of(shared, "one", *limits, form="next_batch_custom")
        assert (payloads(shared, batch) if batch else []) == expected


def test_a_worker_registers_itself(shared: Connection) -> None:
    assert payloads(shared, batch_of(shared, "three")) == ["a"]
    assert shared.value("select pgq_coop.next_batch('q', 'other', 'w')") is None
    found = shared.rows("select consumer_name, last_tick from pgq.get_consumer_info()")
    assert found[:3] == [("other", 3), ("other.w", None), ("shared", 2)]


def test_a_normal_consumer_becomes_a_shared_one(db: Connection) -> None:
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'shared')")
    db.value("select pgq.insert_event('q', 't', 'a')")
    db.tick()
    assert payloads(db, batch_of(db, "one")) == ["a"]


def test_a_consumer_leaves_with_its_workers(shared: Connection) -> None:
    batch_of(shared, "one")
    assert shared.value("select pgq.unregister_consumer('q', 'shared.two')") == 1
    assert shared.value("select pgq.unregister_consumer('q', 'shared')") == 2
    assert shared.rows("select * from pgq.get_consumer_info()") == []
    assert shared.rows("select * from pgq.retry_queue") == []


@pytest.mark.parametrize("names", ["'c'", "'c', 'w'"])
def test_batches_ticks_and_events_are_recorded_once(db: Connection, names: str) -> None:
    def ask(function: str, *numbers: int | None) -> object:
        arguments = "".join(", %s" for _ in numbers)
        return db.value(f"select pgq_ext.{function}({names}{arguments})", *numbers)

    for function, batch, expected in (
        ("is", 1, False),
        ("set", 1, True),
        ("is", 1, True),
        ("set", 1, False),
        ("set", 2, True),
        ("is", 1, False),
        ("set", 0, True),
    ):
        assert ask(f"{function}_batch_done", batch) is expected
    assert db.value("select last_batch_id from pgq_ext.completed_batch") == 2

    assert ask("get_last_tick") is None
    for number in (7, 3, None):
        assert ask("set_last_tick", number) == 1
        assert ask("get_last_tick") == number
    assert db.rows("select * from pgq_ext.completed_tick") == []

    for function, batch, event, expected in (
        ("is", 1, 10, False),
        ("set", 1, 10, True),
        ("is", 1, 10, True),
        ("set", 1, 10, False),
        ("set", 1, 11, True),
        ("set", 2, 10, True),
    ):
        assert ask(f"{function}_event_done", batch, event) is expected
    assert db.rows("select batch_id, event_id from pgq_ext.completed_event") == [(2, 10)]
    assert ask("is_event_done", 1, 11) is False


def test_consumers_and_workers_are_recorded_apart_and_by_commit(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        db.value("select pgq_ext.set_batch_done('c', 5)")
    db.value("select pgq_ext.set_batch_done('c', 'w', 5)")
    for names in ("'c'", "'c', 'v'", "'d', 'w'"):
        assert db.value(f"select pgq_ext.is_batch_done({names}, 5)") is False


def test_one_of_two_sessions_records_the_same(db: Connection) -> None:
    for number in (4, 5):  # with nothing recorded before, and with something
        for call in (f"set_batch_done('c', {number})", f"set_event_done('c', {number}, 1)"):
            db.execute("begin")
            assert db.value(f"select pgq_ext.{call}") is True
            waiting = db.blocked(Connection.value, f"select pgq_ext.{call}")
            db.execute("commit")
            assert waiting.result() is False


def test_a_record_of_many_batches_stays_on_few_pages(db: Connection) -> None:
    for batch in range(1, 2000):
        db.value("select pgq_ext.set_batch_done('c', %s)", batch)
    assert db.value("select pg_relation_size('pgq_ext.completed_batch')") <= 4 * 8192
