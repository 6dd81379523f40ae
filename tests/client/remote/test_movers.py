"""Events are moved to other queues as they are, each once."""

from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    Event,
    HandlerMissing,
    InvalidArgument,
    PermissionDenied,
    QueueClosed,
    QueueMover,
    QueueNotFound,
    QueueSplitter,
)
from tests.client.consumer.support import Queue, run_until_error
from tests.client.remote.conftest import Target
from tests.support.logins import as_login
from tests.support.queues import Connection, rows, tick, value

FIELDS = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
NASTY = ["\\N", "a\tb\nc\\d\r", "", "naïve ☃ 𝄞", "'; drop table pgque.event"]


@pytest.fixture(autouse=True)
def queues(other: Target) -> None:
    for queue in ("q", "orders", "mails"):
        value(other.db, "select pgque.create_queue(%s)", queue)


def mover(other: Target, **options: Any) -> QueueMover:
    return QueueMover(other.q.url, "q", "c", **{"target": other.url, **options})


def splitter(to: Target, routes: Any, **options: Any) -> QueueSplitter:
    options = {"target": to.url, "routes": routes, **options}
    return QueueSplitter(to.q.url, "q", "c", **options)


def moved(db: Connection, queue: str, fields: str = "ev_data") -> list[Any]:
    tick(db, queue)
    question = f"""
        select {fields} from pgque.event e join pgque.queue on e.ev_table / 4 = queue_id
        where queue_name = %s order by ev_id
    """
    found = rows(db, question, queue)
    return found if "," in fields else [row[0] for row in found]


class TestMover:
    @pytest.mark.parametrize("keep_time", [False, True])
    def test_types_keys_extras_and_on_request_the_time_stay(
        self, q: Queue, other: Target, keep_time: bool
    ) -> None:
        for number, payload in enumerate([*NASTY, None]):
            text = f"type {number}" if number else None
            extras = (f"key {number}", None, "", "\\N")
            insert = "select pgque.insert_event('q', %s, %s, %s, %s, %s, %s)"
            value(q.db, insert, text, payload, *extras)
        q.tick()
        q.run(mover(other, keep_time=keep_time))
        fields = f"ev_time, {FIELDS}" if keep_time else FIELDS
        sent = rows(q.db, f"select {fields} from pgque.event order by ev_id")
        assert len(sent) == len(NASTY) + 1
        assert moved(other.db, "q", fields) == sent

    def test_a_writer_may_move_and_an_admin_keep_the_time(self, q: Queue, other: Target) -> None:
        login = as_login(other.url, "pgque_writer")
        other.db.execute("grant create on schema public to public")
        q.send("a", "b")
        error = run_until_error(mover(other, target=login, keep_time=True))
        assert isinstance(error, PermissionDenied)
        assert "grant pgque_admin to" in str(error)
        assert not q.is_acked()
        q.run(mover(other, target=login))
        assert moved(other.db, "q") == ["a", "b"]

    def test_within_a_database_one_transaction_moves_and_acks(self, q: Queue) -> None:
        q.client.create_queue("archive")
        q.send("a", "b")
        q.run(QueueMover(q.url, "q", "c", target_queue="archive"))
        assert moved(q.db, "archive") == ["a", "b"]
        assert value(q.db, "select to_regclass('pgque_completed_batch')") is None

    def test_an_event_that_is_delivered_again_is_moved_when_it_is(
        self, q: Queue, other: Target
    ) -> None:
        q.send("a", "b")
        batch = q.claim()
        batch.nack([1], retry_after=timedelta(0))
        batch.ack()
        value(q.db, "select pgque.maint_retry_events()")
        q.send("c")
        q.run(mover(other))
        assert sorted(moved(other.db, "q")) == ["a", "c"]

    def test_a_target_queue_that_takes_nothing_stops_it(self, q: Queue, other: Target) -> None:
        with pytest.raises(QueueNotFound, match="Did you mean orders"):
            mover(other, target_queue="order").run()
        for itself in (q.url, None):
            with pytest.raises(InvalidArgument, match="without an end"):
                mover(other, target=itself).run()
        value(other.db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
        q.send("a")
        with pytest.raises(QueueClosed):
            mover(other).run()
        assert not q.is_acked()

    def test_options_that_make_no_sense_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="no target queue"):
            QueueMover("", ["a", "b"], "c")
        with pytest.raises(InvalidArgument, match="tracks batches"):
            QueueMover("", "q", "c", target="", tracking="event")


class TestSplitter:
    def test_events_go_to_the_queues_of_their_types(self, q: Queue, other: Target) -> None:
        events = [("order", 1), ("mail", 2), ("both", 3), ("noise", 4), ("order", 5), ("new", 6)]
        q.send(*(Event(str(number), type=type) for type, number in events))
        both = ["orders", "mails", "orders"]
        routes = {"order": "orders", "mail": "mails", "both": both, "noise": []}
        q.run(splitter(other, routes, other="q"))
        assert moved(other.db, "orders") == ["1", "3", "5"]
        assert moved(other.db, "mails") == ["2", "3"]
        assert moved(other.db, "q") == ["6"]

    def test_a_function_chooses_the_queue(self, q: Queue, other: Target) -> None:
        q.send("1", "2", "3")
        q.run(splitter(other, lambda message: ["mails"] if message.json() % 2 else []))
        assert moved(other.db, "mails") == ["1", "3"]

    @pytest.mark.parametrize(
        ("routes", "error", "words"),
        [
            ({"refund": "orders"}, HandlerMissing, 'event 1 of queue q is of type "order"'),
            ({"order": "order"}, QueueNotFound, "Did you mean orders"),
            (lambda message: "order", QueueNotFound, "Did you mean orders"),
            (lambda message: None, InvalidArgument, "returned None for event 1"),
        ],
    )
    def test_an_event_that_has_no_queue_stops_it(
        self, q: Queue, other: Target, routes: Any, error: type[Exception], words: str
    ) -> None:
        q.send(Event("1", type="order"), Event("2", type="refund"))
        found = run_until_error(splitter(other, routes))
        assert isinstance(found, error)
        assert words in str(found)
        assert moved(other.db, "orders") == []
        assert not q.is_acked()

    @pytest.mark.parametrize("routes", [{"order": "q"}, lambda message: "q"])
    def test_a_queue_is_not_split_into_itself(self, q: Queue, other: Target, routes: Any) -> None:
        q.send(Event("1", type="order"))
        error = run_until_error(splitter(other, routes, target=None))
        assert isinstance(error, InvalidArgument)
        assert "without an end" in str(error)
