"""Registering consumers: where they start, what they keep, what their end takes away."""

import pytest

from tests.support.queues import (
    Another,
    Blocked,
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
    received,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

FIRST = "select queue_first_tick from pgque.queue"


@pytest.fixture
def bare(db: Connection) -> Connection:
    """A queue without consumers."""
    make_queue(db, consumers=())
    return db


def register(db: Connection, consumer: str | None = "c") -> int:
    done: int = value(db, "select pgque.register_consumer('q', %s)", consumer)
    return done


def register_at(db: Connection, tick_id: int, consumer: str = "c") -> int:
    done: int = value(db, "select pgque.register_consumer_at('q', %s, %s)", consumer, tick_id)
    return done


def test_a_new_consumer_gets_what_is_not_ticked_and_keeps_its_place(bare: Connection) -> None:
    send(bare, "before the tick")
    tick(bare)
    send(bare, "after the tick")
    assert register(bare) == 1
    tick(bare)
    assert register(bare) == 0
    assert drain(bare) == ["after the tick"]
    send(bare, "old")
    tick(bare)
    value(bare, "select pgque.unregister_consumer('q', 'c')")
    register(bare)
    send(bare, "new")
    assert received(bare) == ["new"]


def test_registering_at_once_makes_one_registration(bare: Connection, blocked: Blocked) -> None:
    with bare.transaction():
        first_answer = register(bare)
        answer = blocked(register)
    assert (first_answer, answer.result()) == (1, 0)


def test_a_consumer_can_start_at_an_earlier_tick_and_read_again(bare: Connection) -> None:
    start = last_tick(bare)
    send(bare, "a")
    tick(bare)
    for _ in range(2):
        register_at(bare, start)
        assert drain(bare) == ["a"]


def test_moving_a_consumer_takes_its_open_batch_back_unless_it_is_leased(q: Connection) -> None:
    batch = open_batch(q, "a")
    register_at(q, last_tick(q) - 1)
    with refused("PQ003"):
        payloads(q, batch)
    value(q, "select batch_id from pgque.claim_batch('q', 'c', 'holder')")
    with refused("PQ004", '"holder"'):
        register_at(q, last_tick(q))


def test_a_tick_that_is_not_there_or_rotated_away_is_refused(bare: Connection) -> None:
    start = last_tick(bare)
    for number in (0, 2, 4711):
        with refused("PQ005", f"tick {number}"):
            register_at(bare, number)
    send(bare, "gone")
    tick(bare)
    for _ in range(3):
        rotate(bare)
    first = value(bare, FIRST)
    with refused("PQ005", f"tick {start}", f"Ticks {first} to {last_tick(bare)} are retained"):
        register_at(bare, start)


def test_the_first_tick_whose_events_are_kept_gives_them_all(bare: Connection) -> None:
    tick(bare)
    rotate(bare)
    first = value(bare, FIRST)
    send(bare, "a")
    tick(bare)
    rotate(bare)
    rotated_on = value(bare, FIRST)
    register_at(bare, rotated_on)
    send(bare, "b")
    assert (first < rotated_on, received(bare)) == (True, ["b"])


def test_rotation_and_compaction_await_a_registration(bare: Connection, another: Another) -> None:
    value(bare, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    step1 = "select pgque.maint_rotate_tables_step1('q')"
    start = last_tick(bare)
    send(bare, "a")
    tick(bare)
    bloat_ticks(bare)
    registering = another()
    with registering.transaction():
        register_at(registering, start)
        assert value(bare, step1) == 0
        assert compact_ticks(bare) == 0
    assert next_batch(bare) == 1
    assert value(bare, step1) == 1


def test_one_whose_queue_is_dropped_must_start_again(bare: Connection, blocked: Blocked) -> None:
    with bare.transaction():
        value(bare, "select pgque.drop_queue('q')")
        answer = blocked(register_at, 1)
    with refused("40001"):
        answer.result()


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


def test_a_consumer_that_is_gone_holds_no_rotation_back(q: Connection) -> None:
    send(q, "a")
    tick(q)
    value(q, "select pgque.unregister_consumer('q', 'c')")
    compact_positions(q)
    assert [rotate(q) for _ in range(4)] == [1] * 4


def test_a_consumer_of_any_name_consumes_but_needs_one(db: Connection) -> None:
    names = ("it's; drop", 'say "hi"', "ünï ☃", "x" * 1000, " ")
    make_queue(db, consumers=names)
    send(db, "a")
    tick(db)
    assert [drain(db, consumer=name) for name in names] == [["a"]] * 5
    for name in ("", None):
        with refused("PQ005", "consumer name"):
            register(db, name)
        with refused("PQ005", "consumer name"):
            value(db, "select pgque.register_consumer('q', %s, 'latest')", name)


def test_infos_count_what_waits_and_what_is_not_ticked(q: Connection) -> None:
    send(q, "a", "b")
    tick(q)
    send(q, "c", "d", "e")
    columns = "queue_name, consumer_name, pending_events"
    assert rows(q, f"select {columns} from pgque.get_consumer_info()") == [("q", "c", 2)]
    info = rows(q, "select queue_name, ev_new, last_tick_id from pgque.get_queue_info('q')")
    assert info == [("q", 3, 2)]
