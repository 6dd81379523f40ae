"""Events that a person takes out of an open batch: dead letters that the batch no longer has."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues.dead_letters import give_up, inspect
from tests.support.queues.sql import Connection, refused

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
    return db.value("select pgque.set_events_aside(%s, %s, 'bad')", batch, list(ids))


def test_no_read_of_the_batch_has_the_event_any_more(q: Connection) -> None:
    batch = q.open_batch("a", "poison", "c")
    poison = q.event_ids(batch)[1]

    assert set_aside(q, batch, poison) == 1

    for name, read in READS.items():
        assert read(q, batch) == ["a", "c"], name
    assert q.rows("select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("poison", "bad")]


def test_a_batch_without_other_events_has_none_and_can_be_acked(q: Connection) -> None:
    batch = q.open_batch("poison")

    set_aside(q, batch, *q.event_ids(batch))

    assert not q.value("select pgque.batch_has_events(%s)", batch)
    q.finish(batch)
    assert inspect(q) == ["poison"]


def test_what_was_set_aside_stays_so_and_more_can_follow(q: Connection) -> None:
    batch = q.open_batch("a", "b", "c")
    first, second, _ = q.event_ids(batch)

    assert set_aside(q, batch, first) == 1
    assert set_aside(q, batch, first, second, second) == 1

    assert q.payloads(batch) == ["c"]


@pytest.mark.parametrize(
    "end",
    [
        "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')",
        "select pgque.dlq_purge('q', '0')",
    ],
    ids=["replay", "purge"],
)
def test_the_batch_does_not_get_it_back_with_the_end_of_the_dead_letter(
    q: Connection, end: str
) -> None:
    batch = q.open_batch("a", "poison")
    set_aside(q, batch, q.event_ids(batch)[1])

    q.value(end)

    assert q.received() == (["a", "poison"] if "replay" in end else ["a"])


def test_other_consumers_and_later_batches_are_not_affected(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    batch = db.open_batch("poison")
    set_aside(db, batch, *db.event_ids(batch))
    db.publish("next")

    assert db.drain() == ["next"]
    assert db.drain(consumer="other") == ["poison", "next"]


def test_events_of_no_batch_or_another_one_are_named_and_nothing_is_set_aside(
    q: Connection,
) -> None:
    later = q.send("a")[0] + 1
    batch = q.open_batch()
    q.send("b", "c")

    with refused("PQ009", f"batch {batch} has no event {later}, {later + 1}"):
        set_aside(q, batch, later + 1, q.event_ids(batch)[0], later)

    assert (inspect(q), q.payloads(batch)) == ([], ["a"])


def test_a_live_lease_refuses_it_with_the_holder(q: Connection) -> None:
    batch = q.open_batch("a")
    q.value("select batch_id from pgque.claim_batch('q', 'c', 'run 7')")

    with refused("PQ004", f'batch {batch} is leased by "run 7" until'):
        set_aside(q, batch, *q.event_ids(batch))


def test_the_holder_of_an_expired_lease_can_no_longer_ack(q: Connection) -> None:
    batch = q.open_batch("a")
    ((epoch,),) = q.rows("select epoch from pgque.claim_batch('q', 'c', 'run 7', '1 microsecond')")

    set_aside(q, batch, *q.event_ids(batch))

    assert q.value("select pgque.set_aside_epoch(%s)", batch) == epoch + 1
    with refused("PQ012", f"batch {batch} is not leased by"):
        q.value("select pgque.ack_batch(%s, 'run 7', %s)", batch, epoch)


def test_a_batch_that_another_subconsumer_takes_over_does_not_have_it(q: Connection) -> None:
    q.value("select pgque.register_subconsumer('q', 'c', 'dead', true)")
    q.publish("a", "poison")
    batch = q.value("select pgque.next_batch('q', 'c', 'dead')")
    set_aside(q, batch, q.event_ids(batch)[1])

    taken = q.value("select pgque.next_batch('q', 'c', 'other', '0')")

    assert taken != batch
    assert q.payloads(taken) == ["a"]
    assert q.rows("select consumer_name from pgque.dlq_summary('q')") == [("c",)]


def test_a_batch_that_goes_over_the_same_events_again_has_them(q: Connection) -> None:
    q.value("select pgque.register_subconsumer('q', 'c', 'dead', true)")
    q.publish("poison")
    ask = "select pgque.next_batch('q', 'c', %s, '0')"
    batch = q.value(ask, "dead")
    set_aside(q, batch, *q.event_ids(batch))
    q.finish(batch)
    q.value("select pgque.register_consumer_at('q', 'c', 1)")

    again = q.value(ask, "dead")

    assert q.value("select pgque.set_aside_epoch(%s)", again) is None
    assert READS["batch_event_sql"](q, again) == ["poison"]
    assert q.payloads(q.value(ask, "other")) == ["poison"]


# ---- finished_before ---------------------------------------------------------------------------


def before(db: Connection, batch: int, events: int = 10) -> tuple[Any, ...]:
    (found,) = db.rows("select * from pgque.finished_before(%s, %s)", batch, events)
    return found


def consume(db: Connection, *texts: str, consumer: str = "c") -> None:
    db.open_batch(*texts)
    db.drain(consumer=consumer)


def test_a_new_consumer_finished_nothing_whatever_the_queue_has_seen(q: Connection) -> None:
    consume(q, *"abc")
    q.value("select pgque.register_consumer('q', 'new')")

    assert before(q, q.open_batch("d", consumer="new")) == (0, 0)


def test_finished_and_failed_events_are_counted_up_to_a_number(q: Connection) -> None:
    give_up(q, "old")
    consume(q, *"abcd")
    give_up(q, "e")
    consume(q, "f")
    q.value("select pgque.nack_batch(%s, %s, '1 hour')", *waiting_batch(q))
    q.drain()
    batch = q.open_batch("h")

    assert before(q, batch) == (8, 3)
    assert before(q, batch, 4) == (4, 2)
    assert before(q, batch, 1) == (1, 1)


def waiting_batch(db: Connection) -> tuple[int, list[int]]:
    batch = db.open_batch("g")
    return batch, db.event_ids(batch)


def nack_one(db: Connection, text: str) -> None:
    batch = db.open_batch(text)
    db.value("select pgque.nack_batch(%s, %s, '1 hour')", batch, db.event_ids(batch))
    db.finish(batch)


@pytest.mark.parametrize("fail", [give_up, nack_one])
def test_a_failure_counts_from_its_own_event_to_the_number_asked_for(
    q: Connection, fail: Callable[[Connection, str], None]
) -> None:
    fail(q, "a")
    batch = q.open_batch("b")
    assert before(q, batch, 1) == (1, 1)
    q.finish(batch)

    assert [before(q, q.open_batch("c"), number) for number in (1, 2)] == [(1, 0), (2, 1)]


def test_dead_letters_of_other_consumers_are_not_counted(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    give_up(db, "a", consumer="other")
    consume(db, "b")

    assert before(db, db.open_batch("c")) == (2, 0)


def test_what_was_passed_over_was_not_finished(q: Connection) -> None:
    q.publish(*"abc")
    q.rows("select * from pgque.seek('q', 'c', 'latest', true)")

    assert before(q, q.open_batch("d")) == (0, 0)


def test_open_batches_of_other_subconsumers_are_not_finished(q: Connection) -> None:
    for worker in ("1", "2"):
        q.value("select pgque.register_subconsumer('q', 'c', %s, true)", worker)
    batches = []
    for worker in ("1", "2"):
        q.publish("x")
        batches.append(q.value("select pgque.next_batch('q', 'c', %s)", worker))

    assert [before(q, batch) for batch in batches] == [(0, 0), (0, 0)]
    q.finish(batches[0])
    assert before(q, batches[1]) == (1, 0)


def test_slots_of_a_partitioned_consumer_count_together(bare: Connection) -> None:
    bare.value("select pgque.subscribe_slots('q', 'p', 2, 'latest')")
    bare.value("select pgque.subscribe_slots('q', 'other', 1, 'latest')")  # it finishes nothing

    def claimed(slot: int) -> tuple[Any, ...]:
        (found,) = bare.rows(
            "select batch_id, epoch from pgque.claim_batch('q', %s, 'me')", f"p#{slot}/2"
        )
        return found

    bare.publish("x")
    first = [claimed(slot) for slot in (0, 1)]
    bare.value("select pgque.ack_batch(%s, 'me', %s)", *first[0])
    bare.publish("y")
    second = claimed(0)

    assert before(bare, second[0]) == (0, 0)
    bare.value("select pgque.ack_batch(%s, 'me', %s)", *first[1])
    assert before(bare, second[0]) == (1, 0)


def test_the_next_batch_replaces_what_was_noted(q: Connection) -> None:
    for text in ("a", "b"):
        batch = q.open_batch(text)
        set_aside(q, batch, *q.event_ids(batch))
        q.finish(batch)

    assert q.next_batch() is None
    assert q.rows("select cardinality(ev_ids) from pgque.set_aside") == [(1,)]
