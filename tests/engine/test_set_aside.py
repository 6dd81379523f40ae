"""Events that a person takes out of an open batch: dead letters that the batch no longer has."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.dead_letters import give_up, inspect
from tests.support.queues import Connection, refused

READS: dict[str, Callable[[Connection, int], list[str]]] = {
    "get_batch_events": Connection.payloads,
    "batch_event_sql": lambda db, batch: [
        row[5] for row in db.rows(db.value("select pgque.batch_event_sql(%s)", batch))
    ],
    "batch_read_plan": lambda db, batch: [
        row[5]
        for (sql,) in db.rows("select slice_sql from pgque.batch_read_plan(%s, 3)", batch)
        for row in db.rows(sql)
    ],
    "receive": lambda db, batch: [
        text for (text,) in db.rows("select payload from pgque.receive('q', 'c')")
    ],
}


def set_aside(db: Connection, batch: int, *ids: int) -> int:
    count: int = db.value("select pgque.set_events_aside(%s, %s, 'bad')", batch, list(ids))
    return count


@pytest.mark.parametrize("read", READS)
def test_no_read_of_the_batch_has_the_event_any_more(db: Connection, read: str) -> None:
    db.make_queue()
    batch = db.open_batch("a", "poison", "c")
    poison = db.event_ids(batch)[1]

    assert set_aside(db, batch, poison) == 1

    assert READS[read](db, batch) == ["a", "c"]
    assert db.rows("select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("poison", "bad")]


def test_a_large_batch_does_not_have_it_either(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("poison", *["x"] * 1000)

    set_aside(db, batch, db.event_ids(batch)[0])

    assert db.payloads(batch) == ["x"] * 1000


def test_a_batch_without_other_events_has_none_and_can_be_acked(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("poison")

    set_aside(db, batch, *db.event_ids(batch))

    assert not db.value("select pgque.batch_has_events(%s)", batch)
    db.finish(batch)
    assert inspect(db) == ["poison"]


def test_what_was_set_aside_stays_so_and_more_can_follow(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("a", "b", "c")
    first, second, _ = db.event_ids(batch)

    assert set_aside(db, batch, first) == 1
    assert set_aside(db, batch, first, second, second) == 1

    assert db.payloads(batch) == ["c"]


@pytest.mark.parametrize("end", ["replay", "purge"])
def test_the_batch_does_not_get_it_back_with_the_end_of_the_dead_letter(
    db: Connection, end: str
) -> None:
    db.make_queue()
    batch = db.open_batch("a", "poison")
    set_aside(db, batch, db.event_ids(batch)[1])

    db.value(
        {
            "replay": "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')",
            "purge": "select pgque.dlq_purge('q', '0')",
        }[end]
    )
    db.tick()

    assert db.drain() == {"replay": ["a", "poison"], "purge": ["a"]}[end]


def test_other_consumers_and_later_batches_are_not_affected(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    batch = db.open_batch("poison")
    set_aside(db, batch, *db.event_ids(batch))
    db.send("next")
    db.tick()

    assert db.drain() == ["next"]
    assert db.drain(consumer="other") == ["poison", "next"]


def test_events_of_no_batch_or_another_one_are_named_and_nothing_is_set_aside(
    db: Connection,
) -> None:
    db.make_queue()
    later = db.send("a")[0] + 1
    batch = db.open_batch()
    db.send("b", "c")

    with refused("PQ009", f"batch {batch} has no event {later}, {later + 1}"):
        set_aside(db, batch, later + 1, db.event_ids(batch)[0], later)

    assert (inspect(db), db.payloads(batch)) == ([], ["a"])


def test_a_live_lease_refuses_it_with_the_holder(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("a")
    db.value("select batch_id from pgque.claim_batch('q', 'c', 'run 7')")

    with refused("PQ004", f'batch {batch} is leased by "run 7" until'):
        set_aside(db, batch, *db.event_ids(batch))


def test_the_holder_of_an_expired_lease_can_no_longer_ack(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("a")
    ((epoch,),) = db.rows("select epoch from pgque.claim_batch('q', 'c', 'run 7', '1 microsecond')")

    set_aside(db, batch, *db.event_ids(batch))

    assert db.value("select pgque.set_aside_epoch(%s)", batch) == epoch + 1
    with refused("PQ012", f"batch {batch} is not leased by"):
        db.value("select pgque.ack_batch(%s, 'run 7', %s)", batch, epoch)


def test_a_batch_that_another_subconsumer_takes_over_does_not_have_it(db: Connection) -> None:
    db.make_queue()
    db.value("select pgque.register_subconsumer('q', 'c', 'dead', true)")
    db.send("a", "poison")
    db.tick()
    batch = db.value("select pgque.next_batch('q', 'c', 'dead')")
    set_aside(db, batch, db.event_ids(batch)[1])

    taken = db.value("select pgque.next_batch('q', 'c', 'other', '0')")

    assert taken != batch
    assert db.payloads(taken) == ["a"]
    assert db.rows("select consumer_name from pgque.dlq_summary('q')") == [("c",)]


# ---- finished_before ---------------------------------------------------------------------------


def before(db: Connection, batch: int, events: int = 10) -> tuple[Any, ...]:
    (found,) = db.rows("select * from pgque.finished_before(%s, %s)", batch, events)
    return found


def consume(db: Connection, *texts: str, consumer: str = "c") -> None:
    db.open_batch(*texts)
    db.drain(consumer=consumer)


def test_a_new_consumer_finished_nothing_whatever_the_queue_has_seen(db: Connection) -> None:
    db.make_queue()
    consume(db, *"abc")
    db.value("select pgque.register_consumer('q', 'new')")

    assert before(db, db.open_batch("d", consumer="new")) == (0, 0)


def test_finished_and_failed_events_are_counted_up_to_a_number(db: Connection) -> None:
    db.make_queue()
    give_up(db, "old")
    consume(db, *"abcd")
    give_up(db, "e")
    consume(db, "f")
    db.value("select pgque.nack_batch(%s, %s, '1 hour')", *waiting_batch(db))
    db.drain()
    batch = db.open_batch("h")

    assert before(db, batch) == (8, 3)
    assert before(db, batch, 4) == (4, 2)
    assert before(db, batch, 1) == (1, 1)


def waiting_batch(db: Connection) -> tuple[int, list[int]]:
    batch = db.open_batch("g")
    return batch, db.event_ids(batch)


def test_dead_letters_of_other_consumers_are_not_counted(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    give_up(db, "a", consumer="other")
    consume(db, "b")

    assert before(db, db.open_batch("c")) == (2, 0)


def test_what_was_passed_over_was_not_finished(db: Connection) -> None:
    db.make_queue()
    db.send(*"abc")
    db.tick()
    db.rows("select * from pgque.seek('q', 'c', 'latest', true)")

    assert before(db, db.open_batch("d")) == (0, 0)


def test_open_batches_of_other_subconsumers_are_not_finished(db: Connection) -> None:
    db.make_queue()
    for worker in ("1", "2"):
        db.value("select pgque.register_subconsumer('q', 'c', %s, true)", worker)
    batches = []
    for worker in ("1", "2"):
        db.send("x")
        db.tick()
        batches.append(db.value("select pgque.next_batch('q', 'c', %s)", worker))

    assert [before(db, batch) for batch in batches] == [(0, 0), (0, 0)]
    db.finish(batches[0])
    assert before(db, batches[1]) == (1, 0)


def test_slots_of_a_partitioned_consumer_count_together(db: Connection) -> None:
    db.make_queue(consumers=())
    db.value("select pgque.subscribe_slots('q', 'p', 2, 'latest')")

    def claimed(slot: int) -> tuple[Any, ...]:
        (found,) = db.rows(
            "select batch_id, epoch from pgque.claim_batch('q', %s, 'me')", f"p#{slot}/2"
        )
        return found

    db.send("x")
    db.tick()
    first = [claimed(slot) for slot in (0, 1)]
    db.value("select pgque.ack_batch(%s, 'me', %s)", *first[0])
    db.send("y")
    db.tick()
    second = claimed(0)

    assert before(db, second[0]) == (0, 0)
    db.value("select pgque.ack_batch(%s, 'me', %s)", *first[1])
    assert before(db, second[0]) == (1, 0)


def test_a_history_of_no_events_is_refused(db: Connection) -> None:
    db.make_queue()
    batch = db.open_batch("a")
    for number in (0, None):
        with refused("PQ005", "there is no history of"):
            before(db, batch, number)  # type: ignore[arg-type]


def test_the_next_batch_replaces_what_was_noted(db: Connection) -> None:
    db.make_queue()
    for text in ("a", "b"):
        batch = db.open_batch(text)
        set_aside(db, batch, *db.event_ids(batch))
        db.finish(batch)

    assert db.next_batch() is None
    assert db.rows("select cardinality(ev_ids) from pgque.set_aside") == [(1,)]
