"""Events are moved to other queues as they are, each once."""

from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    Client,
    Event,
    HandlerMissing,
    InvalidArgument,
    PermissionDenied,
    QueueClosed,
    QueueMover,
    QueueNotFound,
    QueueSplitter,
)
from tests.client.consumer.support import is_acked, run_until, run_until_error, send
from tests.support.logins import as_login
from tests.support.queues import Connection, rows, tick, value

FIELDS = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
NASTY = ["\\N", "a\tb\nc\\d\r", "", "naïve ☃ 𝄞", "'; drop table pgque.event"]


@pytest.fixture(autouse=True)
def queues(other: Connection) -> None:
    for queue in ("q", "orders", "mails"):
        value(other, "select pgque.create_queue(%s)", queue)


def moved(db: Connection, queue: str, fields: str = "ev_data") -> list[Any]:
    tick(db, queue)
    question = f"""
        select {fields} from pgque.event e join pgque.queue on e.ev_table / 4 = queue_id
        where queue_name = %s order by ev_id
    """
    found = rows(db, question, queue)
    return found if "," in fields else [row[0] for row in found]


class TestMover:
    def test_order_types_keys_and_extras_stay(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        for number, payload in enumerate([*NASTY, None]):
            value(
                db,
                "select pgque.insert_event('q', %s, %s, %s, %s, %s, %s)",
                f"type {number}" if number else None,
                payload,
                f"key {number}",
                None,
                "",
                "\\N",
            )
        tick(db)
        run_until(QueueMover(client.url, "q", "c", target=other_url), lambda: is_acked(client))
        sent = rows(db, f"select {FIELDS} from pgque.event order by ev_id")
        assert len(sent) == len(NASTY) + 1
        assert moved(other, "q", FIELDS) == sent

    def test_the_time_is_kept_on_request(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        send(client, db, *NASTY)
        mover = QueueMover(client.url, "q", "c", target=other_url, keep_time=True)
        run_until(mover, lambda: is_acked(client))
        fields = f"ev_time, {FIELDS}"
        assert moved(other, "q", fields) == rows(
            db, f"select {fields} from pgque.event order by ev_id"
        )

    def test_to_keep_the_time_the_role_must_be_admin(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        login = as_login(other_url, "pgque_writer")
        other.execute("grant create on schema public to public")
        send(client, db, "a")
        mover = QueueMover(client.url, "q", "c", target=login, keep_time=True)
        error = run_until_error(mover)
        assert isinstance(error, PermissionDenied)
        assert "grant pgque_admin to" in str(error)
        assert not is_acked(client)

    def test_a_writer_may_move(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        other.execute("grant create on schema public to public")
        send(client, db, "a", "b")
        login = as_login(other_url, "pgque_writer")
        run_until(QueueMover(client.url, "q", "c", target=login), lambda: is_acked(client))
        assert moved(other, "q") == ["a", "b"]

    def test_within_a_database_one_transaction_moves_and_acks(
        self, client: Client, db: Connection
    ) -> None:
        client.create_queue("archive")
        send(client, db, "a", "b")
        mover = QueueMover(client.url, "q", "c", target_queue="archive")
        run_until(mover, lambda: is_acked(client))
        assert moved(db, "archive") == ["a", "b"]
        assert value(db, "select to_regclass('pgque_completed_batch')") is None

    def test_an_event_that_is_delivered_again_is_moved_when_it_is(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        send(client, db, "a", "b")
        batch = client.claim("q", "c", owner="test")
        assert batch
        batch.nack([1], retry_after=timedelta(0))
        batch.ack()
        value(db, "select pgque.maint_retry_events()")
        send(client, db, "c")
        run_until(QueueMover(client.url, "q", "c", target=other_url), lambda: is_acked(client))
        assert sorted(moved(other, "q")) == ["a", "c"]

    def test_an_unknown_target_queue_is_refused_with_near_names(
        self, client: Client, other_url: str
    ) -> None:
        mover = QueueMover(client.url, "q", "c", target=other_url, target_queue="order")
        with pytest.raises(QueueNotFound, match="Did you mean orders"):
            mover.run()

    @pytest.mark.parametrize("has_target", [True, False])
    def test_a_queue_is_not_moved_to_itself(self, client: Client, has_target: bool) -> None:
        target = client.url if has_target else None
        with pytest.raises(InvalidArgument, match="without an end"):
            QueueMover(client.url, "q", "c", target=target).run()

    def test_a_closed_target_queue_takes_nothing(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        value(other, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
        send(client, db, "a")
        with pytest.raises(QueueClosed):
            QueueMover(client.url, "q", "c", target=other_url).run()
        assert not is_acked(client)

    def test_several_queues_need_a_target_queue(self) -> None:
        with pytest.raises(InvalidArgument, match="no target queue"):
            QueueMover("", ["a", "b"], "c")

    def test_it_tracks_batches_only(self) -> None:
        with pytest.raises(InvalidArgument, match="tracks batches"):
            QueueMover("", "q", "c", target="", tracking="event")


class TestSplitter:
    def test_events_go_to_the_queues_of_their_types(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        events = [("order", 1), ("mail", 2), ("both", 3), ("noise", 4), ("order", 5), ("new", 6)]
        send(client, db, *(Event(str(number), type=type) for type, number in events))
        splitter = QueueSplitter(
            client.url,
            "q",
            "c",
            target=other_url,
            routes={"order": "orders", "mail": "mails", "both": ["orders", "mails"], "noise": []},
            other="q",
        )
        run_until(splitter, lambda: is_acked(client))
        assert moved(other, "orders") == ["1", "3", "5"]
        assert moved(other, "mails") == ["2", "3"]
        assert moved(other, "q") == ["6"]

    def test_a_function_chooses_the_queue(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        send(client, db, "1", "2", "3")
        splitter = QueueSplitter(
            client.url,
            "q",
            "c",
            target=other_url,
            routes=lambda message: ["mails"] if message.json() % 2 else [],
        )
        run_until(splitter, lambda: is_acked(client))
        assert moved(other, "mails") == ["1", "3"]

    def test_a_type_without_a_route_stops_it(
        self, client: Client, db: Connection, other_url: str, other: Connection
    ) -> None:
        send(client, db, Event("1", type="order"), Event("2", type="refund"))
        splitter = QueueSplitter(client.url, "q", "c", target=other_url, routes={"order": "orders"})
        error = run_until_error(splitter)
        assert isinstance(error, HandlerMissing)
        assert 'event 2 of queue q is of type "refund"' in str(error)
        assert moved(other, "orders") == []
        assert not is_acked(client)

    @pytest.mark.parametrize("by_function", [True, False])
    def test_an_unknown_queue_is_refused_with_near_names(
        self, client: Client, db: Connection, other_url: str, other: Connection, by_function: bool
    ) -> None:
        send(client, db, Event("1", type="order"))
        routes: Any = (lambda message: "order") if by_function else {"order": "order"}
        error = run_until_error(
            QueueSplitter(client.url, "q", "c", target=other_url, routes=routes)
        )
        assert isinstance(error, QueueNotFound)
        assert "Did you mean orders" in str(error)
        assert not is_acked(client)

    @pytest.mark.parametrize("by_function", [True, False])
    def test_a_queue_is_not_split_into_itself(
        self, client: Client, db: Connection, by_function: bool
    ) -> None:
        send(client, db, Event("1", type="order"))
        routes: Any = (lambda message: "q") if by_function else {"order": "q"}
        error = run_until_error(QueueSplitter(client.url, "q", "c", routes=routes))
        assert isinstance(error, InvalidArgument)
        assert "without an end" in str(error)

    def test_a_function_that_returns_nothing_stops_it(
        self, client: Client, db: Connection, other_url: str
    ) -> None:
        send(client, db, "1")
        splitter = QueueSplitter(
            client.url, "q", "c", target=other_url, routes=lambda message: None
        )
        error = run_until_error(splitter)
        assert isinstance(error, InvalidArgument)
        assert "returned None for event 1" in str(error)
        assert not is_acked(client)
