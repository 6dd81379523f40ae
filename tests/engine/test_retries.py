"""Events that failed: again later, to the same consumer, and in the end to the dead letters."""

from collections.abc import Callable

import pytest

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

Another = Callable[[], Connection]


def ids(db: Connection, batch: int) -> list[int]:
    return [row[0] for row in events(db, batch)]


def nack(db: Connection, batch: int, msg_ids: list[int], after: str = "0") -> int:
    settled: int = value(db, "select pgque.nack_batch(%s, %s, %s, 'broke')", batch, msg_ids, after)
    return settled


def deliver_retries(db: Connection) -> int:
    """Moves the retries that are due, and ticks their queues."""
    moved: int = value(db, "select pgque.maint_retry_events()")
    value(db, "select pgque.ticker()")
    return moved


def dead_letters(db: Connection) -> list[tuple[str, str, str]]:
    return rows(
        db,
        "select c.co_name, d.ev_data, d.dl_reason from pgque.dead_letter d"
        " join pgque.consumer c on c.co_id = d.dl_consumer_id order by d.dl_id",
    )


def test_a_nacked_event_comes_again_and_the_others_do_not(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "fine", "broken", "fine too")
    nack(db, batch, ids(db, batch)[1:2])
    finish(db, batch)
    deliver_retries(db)
    assert drain(db) == ["broken"]


def test_a_retried_event_keeps_id_time_type_and_extras(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')")
    tick(db)
    batch = next_batch(db)
    (first,) = events(db, batch)
    nack(db, batch, [first[0]])
    finish(db, batch)
    deliver_retries(db)
    (again,) = events(db, next_batch(db))
    assert (again[:2], again[3], again[4:]) == (first[:2], 1, first[4:])


def test_a_retried_event_goes_to_its_own_consumer_only(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    deliver_retries(db)
    assert (drain(db, consumer="c"), drain(db, consumer="other")) == (["broken"], ["broken"])


def test_two_consumers_retry_one_event_each_by_itself(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    send(db, "broken")
    tick(db)
    for consumer in ("c", "other"):
        batch = next_batch(db, consumer=consumer)
        nack(db, batch, ids(db, batch))
        finish(db, batch)
    deliver_retries(db)
    assert [drain(db, consumer=name) for name in ("c", "other")] == [["broken"], ["broken"]]


def test_a_retry_waits_for_its_time(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch), after="1 hour")
    finish(db, batch)
    assert (deliver_retries(db), drain(db)) == (0, [])


def test_nacking_twice_retries_once(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch))
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    deliver_retries(db)
    assert drain(db) == ["broken"]


def test_a_rolled_back_nack_retries_nothing(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "fine")
    with db.transaction(force_rollback=True):
        nack(db, batch, ids(db, batch))
    finish(db, batch)
    assert deliver_retries(db) == 0


@pytest.mark.parametrize(("maximum", "deliveries"), [("0", 1), ("2", 3), (None, 6)])
def test_an_event_becomes_a_dead_letter_after_its_retries(
    db: Connection, maximum: str | None, deliveries: int
) -> None:
    make_queue(db)
    value(db, "select pgque.set_queue_config('q', 'max_retries', %s)", maximum)
    send(db, "broken")
    tick(db)
    delivered = 0
    while (batch := next_batch(db)) is not None:
        delivered += len(payloads(db, batch))
        nack(db, batch, ids(db, batch))
        finish(db, batch)
        deliver_retries(db)
    assert (delivered, dead_letters(db)) == (deliveries, [("c", "broken", "broke")])


def test_nack_of_a_message_takes_what_receive_gave(db: Connection) -> None:
    make_queue(db)
    send(db, "broken")
    tick(db)
    value(
        db,
        "select pgque.nack(m.batch_id, m, '0', 'broke') from pgque.receive('q', 'c') m",
    )
    finish(db, next_batch(db))
    deliver_retries(db)
    assert drain(db) == ["broken"]


@pytest.mark.parametrize("when", ["0", "now() - interval '1 hour'"])
def test_event_retry_retries_without_limit(db: Connection, when: str) -> None:
    make_queue(db, max_retries="0")
    send(db, "broken")
    tick(db)
    for _ in range(3):
        batch = next_batch(db)
        (event,) = ids(db, batch)
        value(db, f"select pgque.event_retry(%s, %s, {when})", batch, event)
        finish(db, batch)
        deliver_retries(db)
    assert (dead_letters(db), drain(db)) == ([], ["broken"])


def test_a_nack_tells_how_many_it_settled(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "b", "c")
    assert (nack(db, batch, ids(db, batch)[:2]), nack(db, batch, [])) == (2, 0)


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.nack_batch(%s, array[%s]::bigint[])",
        "select pgque.dead_letter_batch(%s, array[%s]::bigint[], 'bad')",
        "select pgque.event_retry(%s, %s, 0)",
        "select pgque.event_retry(%s, %s, now())",
    ],
)
class TestAnIdThatIsNotInTheBatch:
    def test_is_refused(self, db: Connection, call: str) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("PQ009", "4711", str(batch)):
            value(db, call, batch, 4711)

    def test_is_refused_when_it_is_of_a_later_batch(self, db: Connection, call: str) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        (later,) = send(db, "b")
        tick(db)
        with refused("PQ009", str(later)):
            value(db, call, batch, later)

    def test_is_refused_when_it_is_null(self, db: Connection, call: str) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("PQ009", "null"):
            value(db, call, batch, None)


def test_one_wrong_id_settles_none_of_the_others(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    with refused("PQ009", "4711"):
        nack(db, batch, [*ids(db, batch), 4711])
    assert rows(db, "select * from pgque.retry_queue") == []


def test_an_event_of_another_consumers_retry_is_not_in_the_batch(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "broken")
    broken = ids(db, batch)
    drain(db, consumer="other")
    nack(db, batch, broken)
    finish(db, batch)
    deliver_retries(db)
    with refused("PQ009"):
        nack(db, next_batch(db, consumer="other"), broken)


def test_a_dead_letter_is_not_retried_as_well(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "broken")
    value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids(db, batch))
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    assert (deliver_retries(db), dead_letters(db)) == (0, [("c", "broken", "bad")])


def test_a_dead_letter_of_one_consumer_is_retried_for_another(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "broken")
    value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids(db, batch))
    batch = next_batch(db, consumer="other")
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    assert (deliver_retries(db), drain(db, consumer="other")) == (1, ["broken"])
    assert dead_letters(db) == [("c", "broken", "bad")]


@pytest.mark.parametrize("after", ["-1 second", None])
def test_a_retry_in_the_past_or_at_no_time_is_refused(db: Connection, after: str | None) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    with refused("PQ005"):
        value(db, "select pgque.nack_batch(%s, %s, %s)", batch, ids(db, batch), after)


@pytest.mark.parametrize("seconds", [-1, None])
def test_a_retry_of_one_event_in_no_number_of_seconds_is_refused(
    db: Connection, seconds: int | None
) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    with refused("PQ005", "seconds"):
        value(db, "select pgque.event_retry(%s, %s, %s::integer)", batch, *ids(db, batch), seconds)


def test_retries_of_a_closed_queue_wait_until_it_opens(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    closed = deliver_retries(db)
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert (closed, deliver_retries(db), drain(db)) == (0, 1, ["broken"])


def test_retries_do_not_wait_for_a_tick_of_another_queue(db: Connection) -> None:
    for queue, is_paused in (("paused", "true"), ("q", "false")):
        make_queue(db, queue)
        batch = open_batch(db, "broken", queue=queue)
        nack(db, batch, ids(db, batch))
        finish(db, batch)
        value(db, "select pgque.set_queue_config(%s, 'ticker_paused', %s)", queue, is_paused)
        assert value(db, "select pgque.maint_retry_events()") == 1


def test_retries_that_another_session_moves_are_left_to_it(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    mover = another()
    with mover.transaction():
        value(mover, "select pgque.maint_retry_events()")
        moved_twice = value(db, "select pgque.maint_retry_events()")
    value(db, "select pgque.ticker()")
    assert (moved_twice, drain(db)) == (0, ["broken"])


def test_a_delivered_retry_ticks_although_it_is_no_new_event(db: Connection) -> None:
    make_queue(db, ticker_max_lag="1 day", ticker_idle_period="1 day")
    batch = open_batch(db, "broken")
    nack(db, batch, ids(db, batch))
    finish(db, batch)
    value(db, "select pgque.maint()")
    assert value(db, "select pgque.ticker()") == 1
