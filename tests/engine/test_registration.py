"""Registering consumers: where they start, what they keep, what their end takes away."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_positions,
    compact_ticks,
    drain,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


def register(db: Connection, consumer: str | None = "c", queue: str | None = "q") -> int:
    done: int = value(db, "select pgque.register_consumer(%s, %s)", queue, consumer)
    return done


def register_at(db: Connection, tick_id: int, consumer: str = "c") -> int:
    done: int = value(db, "select pgque.register_consumer_at('q', %s, %s)", consumer, tick_id)
    return done


def test_a_new_consumer_gets_what_is_not_yet_ticked(db: Connection) -> None:
    make_queue(db, consumers=())
    send(db, "before the tick")
    tick(db)
    send(db, "after the tick")
    register(db)
    tick(db)
    assert drain(db) == ["after the tick"]


def test_registering_again_keeps_the_position(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    assert (register(db), drain(db)) == (0, ["a"])


def test_registering_at_once_makes_one_registration(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, consumers=())
    second = another()
    with db.transaction():
        first_answer = register(db)
        answer = background.submit(register, second)
        wait_until_blocked(another(), second)
    assert (first_answer, answer.result()) == (1, 0)


def test_a_consumer_can_start_at_an_earlier_tick(db: Connection) -> None:
    make_queue(db, consumers=())
    start = last_tick(db)
    send(db, "a")
    tick(db)
    register_at(db, start)
    assert drain(db) == ["a"]


def test_a_consumer_can_be_moved_back_to_read_again(db: Connection) -> None:
    make_queue(db)
    start = last_tick(db)
    send(db, "a")
    tick(db)
    first = drain(db)
    register_at(db, start)
    assert (first, drain(db)) == (["a"], ["a"])


def test_moving_a_consumer_takes_its_open_batch_back(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    register_at(db, last_tick(db))
    with refused("PQ003"):
        payloads(db, batch)


def test_a_consumer_with_a_live_lease_is_not_moved(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    value(db, "select batch_id from pgque.claim_batch('q', 'c', 'holder')")
    with refused("PQ004", '"holder"'):
        register_at(db, last_tick(db))


@pytest.mark.parametrize("number", [0, 2, 4711])
def test_a_tick_that_is_not_there_is_refused(db: Connection, number: int) -> None:
    make_queue(db, consumers=())
    with refused("PQ005", f"tick {number}"):
        register_at(db, number)


def test_a_tick_whose_events_were_rotated_away_is_refused(db: Connection) -> None:
    make_queue(db, consumers=())
    start = last_tick(db)
    send(db, "gone")
    tick(db)
    for _ in range(3):
        rotate(db)
    first = value(db, "select queue_first_tick from pgque.queue")
    with refused("PQ005", f"tick {start}", f"Ticks {first} to {last_tick(db)} are retained"):
        register_at(db, start)


def test_the_first_tick_whose_events_are_kept_gives_them_all(db: Connection) -> None:
    make_queue(db, consumers=())
    tick(db)
    rotate(db)
    first = value(db, "select queue_first_tick from pgque.queue")
    send(db, "a")
    tick(db)
    rotate(db)
    rotated_on = value(db, "select queue_first_tick from pgque.queue")
    register_at(db, rotated_on)
    send(db, "b")
    tick(db)
    assert (first < rotated_on, drain(db)) == (True, ["b"])


def test_rotation_waits_for_a_registration_that_is_not_committed(
    db: Connection, another: Another
) -> None:
    make_queue(db, consumers=(), rotation_period="1 microsecond")
    start = last_tick(db)
    send(db, "a")
    tick(db)
    registering = another()
    with registering.transaction():
        register_at(registering, start)
        held = value(db, "select pgque.maint_rotate_tables_step1('q')")
    assert (held, value(db, "select pgque.maint_rotate_tables_step1('q')")) == (0, 1)


def test_a_registration_whose_queue_is_dropped_meanwhile_is_told_to_start_again(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, consumers=())
    registering = another()
    with db.transaction():
        value(db, "select pgque.drop_queue('q')")
        answer = background.submit(register_at, registering, 1)
        wait_until_blocked(another(), registering)
    with refused("40001"):
        answer.result()


def test_compaction_waits_for_a_registration_that_is_not_committed(
    db: Connection, another: Another
) -> None:
    make_queue(db, consumers=())
    start = last_tick(db)
    bloat_ticks(db)
    registering = another()
    with registering.transaction():
        register_at(registering, start)
        dropped = compact_ticks(db)
    assert (dropped, next_batch(db)) == (0, 1)


def test_unregistering_takes_batch_retries_and_dead_letters(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    ids = send(db, "again", "never")
    tick(db)
    for consumer in ("c", "other"):
        batch = next_batch(db, consumer=consumer)
        value(db, "select pgque.nack_batch(%s, %s)", batch, ids[:1])
        value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:])
    value(db, "select pgque.unregister_consumer('q', 'c')")
    owner = value(db, "select sub_id from pgque.subscription")
    assert rows(db, "select ev_owner from pgque.retry_queue") == [(owner,)]
    assert rows(db, "select consumer_name from pgque.dlq_summary('q')") == [("other",)]


def test_a_consumer_registered_anew_starts_at_the_last_tick(db: Connection) -> None:
    make_queue(db)
    send(db, "old")
    tick(db)
    value(db, "select pgque.unregister_consumer('q', 'c')")
    register(db)
    send(db, "new")
    tick(db)
    assert drain(db) == ["new"]


def test_a_consumer_that_is_gone_holds_no_rotation_back(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    value(db, "select pgque.unregister_consumer('q', 'c')")
    compact_positions(db)
    assert [rotate(db) for _ in range(4)] == [1] * 4


@pytest.mark.parametrize("consumer", ["", None])
def test_a_consumer_without_a_name_is_refused(db: Connection, consumer: str | None) -> None:
    make_queue(db)
    with refused("PQ005", "consumer name"):
        register(db, consumer)
    with refused("PQ005", "consumer name"):
        value(db, "select pgque.register_consumer('q', %s, 'latest')", consumer)


@pytest.mark.parametrize("consumer", ["it's; drop", 'say "hi"', "ünï ☃", "x" * 1000, " "])
def test_a_consumer_of_any_name_consumes(db: Connection, consumer: str) -> None:
    make_queue(db, consumers=(consumer,))
    send(db, "a")
    tick(db)
    assert drain(db, consumer=consumer) == ["a"]


@pytest.mark.parametrize(
    "call",
    [
        "pgque.next_batch('q', 'nobody')",
        "pgque.next_batch_custom('q', 'nobody', null, null, null)",
        "pgque.claim_batch('q', 'nobody', 'me')",
        "pgque.receive('q', 'nobody')",
        "pgque.get_lease_info('q', 'nobody')",
    ],
)
class TestEveryCallThatNamesAConsumer:
    def test_names_one_that_is_not_registered(self, db: Connection, call: str) -> None:
        make_queue(db)
        with refused("PQ002", '"nobody"', '"q"', "register_consumer"):
            db.execute(f"select * from {call}".encode())

    def test_names_an_unknown_queue(self, db: Connection, call: str) -> None:
        with refused("PQ001", '"q"', "create_queue"):
            db.execute(f"select * from {call}".encode())


def test_consumer_info_counts_what_waits(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b")
    tick(db)
    info = rows(
        db, "select queue_name, consumer_name, pending_events from pgque.get_consumer_info()"
    )
    assert info == [("q", "c", 2)]


def test_queue_info_counts_what_is_not_ticked(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b", "c")
    info = rows(db, "select queue_name, ev_new, last_tick_id from pgque.get_queue_info('q')")
    assert info == [("q", 3, 1)]
