"""Events that a person takes out of an open batch: dead letters that the batch no longer has."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.dead_letters import give_up, inspect
from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)

READS: dict[str, Callable[[Connection, int], list[str]]] = {
    "get_batch_events": payloads,
    "batch_event_sql": lambda db, batch: [
        row[5] for row in rows(db, value(db, "select pgque.batch_event_sql(%s)", batch))
    ],
    "batch_read_plan": lambda db, batch: [
        row[5]
        for (sql,) in rows(db, "select slice_sql from pgque.batch_read_plan(%s, 3)", batch)
        for row in rows(db, sql)
    ],
    "receive": lambda db, batch: [
        text for (text,) in rows(db, "select payload from pgque.receive('q', 'c')")
    ],
}


def set_aside(db: Connection, batch: int, *ids: int) -> int:
    count: int = value(db, "select pgque.set_events_aside(%s, %s, 'bad')", batch, list(ids))
    return count


def ids_of(db: Connection, batch: int) -> list[int]:
    return [row[0] for row in events(db, batch)]


@pytest.mark.parametrize("read", READS)
def test_no_read_of_the_batch_has_the_event_any_more(db: Connection, read: str) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "poison", "c")
    poison = ids_of(db, batch)[1]

    assert set_aside(db, batch, poison) == 1

    assert READS[read](db, batch) == ["a", "c"]
    assert rows(db, "select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("poison", "bad")]


def test_a_large_batch_does_not_have_it_either(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "poison", *["x"] * 1000)

    set_aside(db, batch, ids_of(db, batch)[0])

    assert payloads(db, batch) == ["x"] * 1000


def test_a_batch_without_other_events_has_none_and_can_be_acked(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "poison")

    set_aside(db, batch, *ids_of(db, batch))

    assert not value(db, "select pgque.batch_has_events(%s)", batch)
    finish(db, batch)
    assert inspect(db) == ["poison"]


def test_what_was_set_aside_stays_so_and_more_can_follow(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "b", "c")
    first, second, _ = ids_of(db, batch)

    assert set_aside(db, batch, first) == 1
    assert set_aside(db, batch, first, second, second) == 1

    assert payloads(db, batch) == ["c"]


@pytest.mark.parametrize("end", ["replay", "purge"])
def test_the_batch_does_not_get_it_back_with_the_end_of_the_dead_letter(
    db: Connection, end: str
) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "poison")
    set_aside(db, batch, ids_of(db, batch)[1])

    value(
        db,
        {
            "replay": "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')",
            "purge": "select pgque.dlq_purge('q', '0')",
        }[end],
    )
    tick(db)

    assert drain(db) == {"replay": ["a", "poison"], "purge": ["a"]}[end]


def test_other_consumers_and_later_batches_are_not_affected(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "poison")
    set_aside(db, batch, *ids_of(db, batch))
    send(db, "next")
    tick(db)

    assert drain(db) == ["next"]
    assert drain(db, consumer="other") == ["poison", "next"]


def test_events_of_no_batch_or_another_one_are_named_and_nothing_is_set_aside(
    db: Connection,
) -> None:
    make_queue(db)
    later = send(db, "a")[0] + 1
    batch = open_batch(db)
    send(db, "b", "c")

    with refused("PQ009", f"batch {batch} has no event {later}, {later + 1}"):
        set_aside(db, batch, later + 1, ids_of(db, batch)[0], later)

    assert (inspect(db), payloads(db, batch)) == ([], ["a"])


def test_a_live_lease_refuses_it_with_the_holder(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    value(db, "select batch_id from pgque.claim_batch('q', 'c', 'run 7')")

    with refused("PQ004", f'batch {batch} is leased by "run 7" until'):
        set_aside(db, batch, *ids_of(db, batch))


def test_the_holder_of_an_expired_lease_can_no_longer_ack(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    ((epoch,),) = rows(
        db, "select epoch from pgque.claim_batch('q', 'c', 'run 7', '1 microsecond')"
    )

    set_aside(db, batch, *ids_of(db, batch))

    assert value(db, "select pgque.set_aside_epoch(%s)", batch) == epoch + 1
    with refused("PQ012", f"batch {batch} is not leased by"):
        value(db, "select pgque.ack_batch(%s, 'run 7', %s)", batch, epoch)


def test_a_batch_that_another_subconsumer_takes_over_does_not_have_it(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.register_subconsumer('q', 'c', 'dead', true)")
    send(db, "a", "poison")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', 'dead')")
    set_aside(db, batch, ids_of(db, batch)[1])

    taken = value(db, "select pgque.next_batch('q', 'c', 'other', '0')")

    assert taken != batch
    assert payloads(db, taken) == ["a"]
    assert rows(db, "select consumer_name from pgque.dlq_summary('q')") == [("c",)]


# ---- finished_before ---------------------------------------------------------------------------


def before(db: Connection, batch: int, events: int = 10) -> tuple[Any, ...]:
    (found,) = rows(db, "select * from pgque.finished_before(%s, %s)", batch, events)
    return found


def consume(db: Connection, *texts: str, consumer: str = "c") -> None:
    open_batch(db, *texts)
    drain(db, consumer=consumer)


def test_a_new_consumer_finished_nothing_whatever_the_queue_has_seen(db: Connection) -> None:
    make_queue(db)
    consume(db, *"abc")
    value(db, "select pgque.register_consumer('q', 'new')")

    assert before(db, open_batch(db, "d", consumer="new")) == (0, 0)


def test_finished_and_failed_events_are_counted_up_to_a_number(db: Connection) -> None:
    make_queue(db)
    give_up(db, "old")
    consume(db, *"abcd")
    give_up(db, "e")
    consume(db, "f")
    value(db, "select pgque.nack_batch(%s, %s, '1 hour')", *waiting_batch(db))
    drain(db)
    batch = open_batch(db, "h")

    assert before(db, batch) == (8, 3)
    assert before(db, batch, 4) == (4, 2)
    assert before(db, batch, 1) == (1, 1)


def waiting_batch(db: Connection) -> tuple[int, list[int]]:
    batch = open_batch(db, "g")
    return batch, ids_of(db, batch)


def test_dead_letters_of_other_consumers_are_not_counted(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    give_up(db, "a", consumer="other")
    consume(db, "b")

    assert before(db, open_batch(db, "c")) == (2, 0)


def test_what_was_passed_over_was_not_finished(db: Connection) -> None:
    make_queue(db)
    send(db, *"abc")
    tick(db)
    rows(db, "select * from pgque.seek('q', 'c', 'latest', true)")

    assert before(db, open_batch(db, "d")) == (0, 0)


def test_open_batches_of_other_subconsumers_are_not_finished(db: Connection) -> None:
    make_queue(db)
    for worker in ("1", "2"):
        value(db, "select pgque.register_subconsumer('q', 'c', %s, true)", worker)
    batches = []
    for worker in ("1", "2"):
        send(db, "x")
        tick(db)
        batches.append(value(db, "select pgque.next_batch('q', 'c', %s)", worker))

    assert [before(db, batch) for batch in batches] == [(0, 0), (0, 0)]
    finish(db, batches[0])
    assert before(db, batches[1]) == (1, 0)


def test_slots_of_a_partitioned_consumer_count_together(db: Connection) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.subscribe_slots('q', 'p', 2, 'latest')")

    def claimed(slot: int) -> tuple[Any, ...]:
        (found,) = rows(
            db, "select batch_id, epoch from pgque.claim_batch('q', %s, 'me')", f"p#{slot}/2"
        )
        return found

    send(db, "x")
    tick(db)
    first = [claimed(slot) for slot in (0, 1)]
    value(db, "select pgque.ack_batch(%s, 'me', %s)", *first[0])
    send(db, "y")
    tick(db)
    second = claimed(0)

    assert before(db, second[0]) == (0, 0)
    value(db, "select pgque.ack_batch(%s, 'me', %s)", *first[1])
    assert before(db, second[0]) == (1, 0)


def test_a_history_of_no_events_is_refused(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    for number in (0, None):
        with refused("PQ005", "there is no history of"):
            before(db, batch, number)  # type: ignore[arg-type]


def test_the_next_batch_replaces_what_was_noted(db: Connection) -> None:
    make_queue(db)
    for text in ("a", "b"):
        batch = open_batch(db, text)
        set_aside(db, batch, *ids_of(db, batch))
        finish(db, batch)

    assert next_batch(db) is None
    assert rows(db, "select cardinality(ev_ids) from pgque.set_aside") == [(1,)]
