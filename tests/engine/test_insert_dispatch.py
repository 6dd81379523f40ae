"""How send reaches a queue's own insert function: by a static call for the first hundred queues."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues import (
    Connection,
    drain,
    make_queue,
    queue_id,
    refused,
    rotate,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]

CALLS = [
    "select pgque.send(%s, 't', %s::text)",
    "select pgque.insert_event(%s, 't', %s)",
    "select pgque.send_batch(%s, 't', array[%s])",
]


def cut(db: Connection, start: str, end: str) -> None:
    """Takes a part out of what reaches the insert functions."""
    for name in ("dispatch_insert", "dispatch_insert_bulk"):
        definition = value(db, "select pg_get_functiondef(%s::regproc)", f"pgque.{name}")
        left = definition[: definition.index(start)] + definition[definition.index(end) :]
        db.execute(left.encode())


def forget(db: Connection) -> None:
    """As if the queues were beyond those that are named."""
    cut(db, "if ", "execute ")


def rely_on_static_calls(db: Connection) -> None:
    """Whoever is not found among the queues that are named sends nothing now."""
    cut(db, "execute ", "return v_result")


def is_static(db: Connection, queue: str = "q") -> bool:
    """Whether send calls the queue's function without a plan of its own for each event."""
    name = f"event_{queue_id(db, queue)}_insert_short"
    sql = "select prosrc like %s from pg_proc where proname = 'dispatch_insert'"
    return bool(value(db, sql, f"%{name}(%"))


def received(db: Connection, queue: str = "q") -> list[str]:
    tick(db, queue)
    return drain(db, queue)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
def test_each_queue_gets_its_own_events(db: Connection, call: str, count: int) -> None:
    queues = [f"queue {number}" for number in range(count)]
    for queue in queues:
        make_queue(db, queue)
    rely_on_static_calls(db)
    for queue in queues:
        value(db, call, queue, f"to {queue}")
    for queue in queues:
        assert received(db, queue) == [f"to {queue}"]


@pytest.mark.parametrize("call", CALLS)
def test_a_queue_that_is_not_named_gets_its_events(db: Connection, call: str) -> None:
    make_queue(db)
    value(db, call, "q", "before")
    forget(db)
    assert not is_static(db)
    value(db, call, "q", "after")
    assert received(db) == ["before", "after"]


def test_queues_beyond_the_first_hundred_are_sent_to(db: Connection) -> None:
    for number in range(102):
        make_queue(db, f"q{number}", consumers=())
    make_queue(db)
    assert (is_static(db, "q99"), is_static(db, "q100")) == (True, False)
    send(db, "x")
    send(db, "y", queue="q99")
    assert received(db) == ["x"]


def test_a_queue_takes_the_place_of_one_that_is_gone(db: Connection) -> None:
    for number in range(101):
        make_queue(db, f"q{number}", consumers=())
    value(db, "select pgque.drop_queue('q0')")
    make_queue(db)
    assert (is_static(db, "q100"), is_static(db)) == (True, False)


def test_installing_again_names_the_queues_again(db: Connection) -> None:
    make_queue(db)
    forget(db)
    db.execute(INSTALL_SQL.read_bytes())
    assert is_static(db)


def test_a_queue_that_is_dropped_is_unknown_to_send(db: Connection) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.drop_queue('q')")
    with refused("PQ001", '"q"'):
        send(db, "x")


def test_a_queue_made_again_under_its_name_gets_its_events(db: Connection) -> None:
    make_queue(db, consumers=())
    send(db, "of the old queue")
    value(db, "select pgque.drop_queue('q')")
    make_queue(db)
    send(db, "before")
    send(db, "after")
    assert received(db) == ["before", "after"]


@pytest.mark.parametrize("call", CALLS)
def test_a_queue_can_be_closed_and_opened(db: Connection, call: str) -> None:
    make_queue(db)
    value(db, call, "q", "a")
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", '"q"'):
        value(db, call, "q", "b")
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    value(db, call, "q", "c")
    assert received(db) == ["a", "c"]


def test_rotation_changes_the_table_behind_a_static_call(db: Connection, another: Another) -> None:
    make_queue(db)
    producer = another()
    for number in range(7):
        send(producer, f"{number}")
        assert received(db) == [f"{number}"]
        assert rotate(db)
        current = value(db, "select queue_cur_table from pgque.queue")
        assert current == (number + 1) % 3
        send(producer, "x")
        assert value(db, f"select count(*) from pgque.event_{queue_id(db)}_{current}") == 1
        assert received(db) == ["x"]


def test_a_producer_in_repeatable_read_sends_on_when_queues_are_made(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    producer = another()
    with producer.transaction():
        producer.execute("set transaction isolation level repeatable read")
        send(producer, "before")
        make_queue(db, "another")
        send(producer, "after")
    assert received(db) == ["before", "after"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_of_two_sessions_that_make_queues_one_waits(
    db: Connection, another: Another, background: ThreadPoolExecutor, isolation: str
) -> None:
    first, second = another(), another()
    with first.transaction():
        make_queue(first, "first")
        second.execute(f"set default_transaction_isolation = '{isolation}'".encode())
        made = background.submit(make_queue, second, "second")
        wait_until_blocked(db, second)
    made.result()
    for queue in ("first", "second"):
        send(db, f"to {queue}", queue=queue)
        assert received(db, queue) == [f"to {queue}"]


def test_a_callers_search_path_does_not_reach_a_static_call(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "another")
    rely_on_static_calls(db)
    number = queue_id(db)
    db.execute("create schema evil")
    for signature in (
        f"event_{number}_insert_short(text, text)",
        "dispatch_insert(int, text, text)",
    ):
        db.execute(
            f"create function evil.{signature} returns bigint language sql as 'select 666'".encode()
        )
    db.execute(
        "create function evil.same(int, int) returns bool language sql as 'select 1 / 0 = 1'"
    )
    for name in ("=", "<"):
        definition = "leftarg = int, rightarg = int, function = evil.same"
        db.execute(f"create operator evil.{name} ({definition})".encode())
    db.execute("set search_path = evil, pg_catalog, pgque")
    sent = value(db, "select pgque.send('q', 't', 'x')")
    db.execute("reset search_path")
    assert sent != 666
    assert received(db) == ["x"]
