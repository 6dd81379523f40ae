"""A consumer handles each event by its type, and loses none."""

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    Client,
    Consumer,
    ConsumerNotFound,
    Delivery,
    Event,
    HandlerMissing,
    InvalidArgument,
    Limits,
)
from pgque_dagster.client.consumer.wakeup import listening
from tests.client.consumer.support import (
    is_acked,
    run_until,
    run_until_error,
    running,
    send,
    wait_until,
)
from tests.support.pooler import relay_without_notifications
from tests.support.queues import Connection, make_queue, rows, tick, value


class TestHandlers:
    def test_each_type_has_its_handler_and_all_others_one(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c")
        handled: list[tuple[str, Any]] = []

        @consumer.on("a", "b")
        def ab(message: Delivery) -> None:
            handled.append(("ab", message.json()))

        @consumer.on()
        def other(message: Delivery) -> None:
            handled.append(("other", message.json()))

        send(client, db, Event({"n": 1}, "a"), Event({"n": 2}, "z"), Event({"n": 3}, "b"))
        run_until(consumer, lambda: is_acked(client))
        assert handled == [("ab", {"n": 1}), ("other", {"n": 2}), ("ab", {"n": 3})]

    def test_a_type_without_a_handler_stops_before_any_event_is_handled(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c")
        handled: list[Delivery] = []
        consumer.on("a")(handled.append)
        send(client, db, Event("1", "a"), Event("2", "b"), Event("3", "c"))

        error = run_until_error(consumer)

        assert isinstance(error, HandlerMissing)
        assert 'of q/c has events of type "b", "c"' in str(error)
        assert '@consumer.on("b", "c")' in str(error)
        assert handled == []
        received = client.receive("q", "c")  # the lease is released, too
        assert received is not None and len(received.messages) == 3

    def test_a_consumer_without_handlers_is_refused(self, client: Client) -> None:
        with pytest.raises(InvalidArgument, match=r"@consumer\.on"):
            Consumer(client.url, "q", "c").run()

    def test_a_second_handler_of_a_type_is_refused(self, client: Client) -> None:
        consumer = Consumer(client.url, "q", "c")
        for types in (("a",), ()):
            consumer.on(*types)(print)
            with pytest.raises(InvalidArgument, match="already: print"):
                consumer.on(*types)(print)

    def test_a_consumer_that_is_not_registered_is_an_error(self, client: Client) -> None:
        consumer = Consumer(client.url, "q", "new")
        consumer.on()(print)
        with pytest.raises(ConsumerNotFound, match="new"):
            consumer.run()

    def test_a_consumer_registers_where_it_is_told_to_start(
        self, client: Client, db: Connection
    ) -> None:
        send(client, db, "before")
        consumer = Consumer(client.url, "q", "new", start_at="earliest")
        handled: list[str | None] = []
        consumer.on()(lambda message: handled.append(message.payload))
        run_until(consumer, lambda: bool(handled))
        assert handled == ["before"]


class TestFailures:
    def test_an_event_whose_handler_raises_is_delivered_again(
        self, client: Client, db: Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = Consumer(client.url, "q", "c", retry_after=timedelta(0))
        handled: list[tuple[str | None, int | None]] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append((message.payload, message.retry_count))
            if message.payload == "bad" and not message.retry_count:
                raise ValueError("no such customer")

        send(client, db, "good", "bad", "fine")
        with running(consumer):
            wait_until(lambda: len(handled) == 3 and is_acked(client))
            client.maint()
            tick(db)
            wait_until(lambda: len(handled) == 4)
        assert handled == [("good", None), ("bad", None), ("fine", None), ("bad", 1)]
        (record,) = [r for r in caplog.records if r.exc_info]
        assert (record.queue, record.consumer, record.event_type) == ("q", "c", "default")  # type: ignore[attr-defined]

    def test_an_event_becomes_a_dead_letter_with_the_error_when_its_retries_run_out(
        self, client: Client, db: Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not captured, because no test report can hold half a surrogate pair.
        caplog.set_level(logging.CRITICAL, logger="pgque.consumer")
        client.configure_queue("q", max_retries="0")
        consumer = Consumer(client.url, "q", "c")

        @consumer.on()
        def handle(message: Delivery) -> None:
            raise ValueError("no such\0 \ud800customer")

        send(client, db, "bad")
        run_until(consumer, lambda: is_acked(client))
        (letter,) = client.dead_letters("q")
        assert (letter.payload, letter.reason) == ("bad", "ValueError: no such ?customer")

    def test_a_handler_may_nack_and_dead_letter_by_itself(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c")

        @consumer.on()
        def handle(message: Delivery) -> None:
            if message.payload == "later":
                message.nack(retry_after=timedelta(hours=3), reason="busy")
            if message.payload == "never":
                message.dead_letter("unknown product")

        send(client, db, "later", "never", "now")
        run_until(consumer, lambda: is_acked(client))
        assert [letter.reason for letter in client.dead_letters("q")] == ["unknown product"]
        ((payload, hours),) = rows(
            db,
            "select ev_data, round(extract(epoch from ev_retry_after - now()) / 3600)"
            " from pgque.retry_queue",
        )
        assert (payload, hours) == ("later", 3)


class TestTransactional:
    @pytest.fixture
    def consumer(self, client: Client) -> Consumer:
        return Consumer(client.url, "q", "c")

    def test_what_a_handler_writes_commits_with_the_ack(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        seen = []

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            connection.execute("insert into done values (%s)", (message.payload,))
            seen.append(value(db, "select count(*) from done"))

        send(client, db, "1", "2")
        run_until(consumer, lambda: is_acked(client))
        assert seen == [0, 0]
        assert rows(db, "select id from done") == [("1",), ("2",)]

    def test_what_a_handler_wrote_is_rolled_back_if_the_event_is_not_done(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            connection.execute("insert into done values (%s)", (message.payload,))
            if message.payload == "raises":
                connection.execute("select 1 / 0")
            if message.payload == "nacks":
                message.nack()
            if message.payload == "dead":
                message.dead_letter("no")

        send(client, db, "1", "raises", "nacks", "dead", "2")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select id from done") == [("1",), ("2",)]
        assert value(db, "select count(*) from pgque.retry_queue") == 2
        assert len(client.dead_letters("q")) == 1

    def test_nothing_is_written_twice_if_the_lease_was_lost(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        taken = []

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            connection.execute("insert into done values (%s)", (message.payload,))
            if not taken:
                db.execute("update pgque.config set origin_id = origin_id")
                info = client.lease_info("q", "c")
                assert info is not None and info.owner is not None
                # The same owner's claim raises the epoch, as another one does after the lease.
                taken.append(client.claim("q", "c", owner=info.owner))
                taken[0].release()

        send(client, db, "1")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select id from done") == [("1",)]

    def test_a_page_of_a_slot_is_acked_with_what_its_handlers_wrote(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "parts", slots=1, start_at="latest")

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            connection.execute("insert into done values (%s)", (message.payload,))
            if message.payload == "1":
                message.nack()

        with running(consumer) as errors:
            wait_until(lambda: consumer.health().state == "idle")
            send(client, db, Event("1", key="a"), Event("2", key="b"))
            wait_until(lambda: bool(errors or rows(db, "select id from done")))
            send(client, db, Event("3", key="c"))
            wait_until(lambda: bool(errors) or len(rows(db, "select id from done")) == 2)
        assert errors == []
        assert rows(db, "select id from done") == [("2",), ("3",)]

    def test_options_that_need_several_connections_are_refused(self, client: Client) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=2)
        consumer.on(transactional=True)(print)
        with pytest.raises(InvalidArgument, match="concurrency"):
            consumer.run()

        async def handle(message: Delivery) -> None: ...

        with pytest.raises(InvalidArgument, match="coroutine"):
            consumer.on("x", transactional=True)(handle)


class TestBatches:
    def test_limits_say_which_batches_are_opened(self, client: Client, db: Connection) -> None:
        consumer = Consumer(
            client.url,
            "q",
            "c",
            limits=Limits(min_count=3),
            poll_interval=timedelta(milliseconds=50),
        )
        handled: list[str | None] = []
        consumer.on()(lambda message: handled.append(message.payload))
        with running(consumer) as errors:
            for event in ("1", "2"):
                send(client, db, event)
            wait_until(lambda: consumer.health().state == "idle")
            assert handled == []
            send(client, db, "3")
            wait_until(lambda: len(handled) == 3)
        assert errors == []

    def test_the_queue_that_comes_first_has_priority(self, client: Client, db: Connection) -> None:
        make_queue(db, "high")
        consumer = Consumer(client.url, ["high", "q"], "c")
        handled: list[tuple[str, str | None]] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append((message.queue, message.payload))
            if message.payload == "1":
                with Client(client.url) as another:
                    another.send("high", "urgent")
                tick(db, "high")

        send(client, db, "1")
        send(client, db, "2")
        client.send("high", "first")
        tick(db, "high")
        run_until(consumer, lambda: len(handled) == 4)
        assert handled == [("high", "first"), ("q", "1"), ("high", "urgent"), ("q", "2")]

    def test_a_batch_that_another_process_holds_is_taken_over_when_its_lease_ends(
        self, client: Client, db: Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        send(client, db, "1")
        client.claim("q", "c", owner="killed process", ttl=timedelta(seconds=1))
        consumer = Consumer(client.url, "q", "c", poll_interval=timedelta(milliseconds=50))
        handled: list[Delivery] = []
        consumer.on()(handled.append)
        run_until(consumer, lambda: bool(handled))
        assert "killed process" in caplog.text

    def test_several_processes_share_the_batches_as_subconsumers(
        self, client: Client, db: Connection
    ) -> None:
        handled: list[tuple[str, str | None]] = []
        consumers = [Consumer(client.url, "q", "c", subconsumer=name) for name in "xy"]

        def handler_of(name: str, other: str) -> Any:
            def handle(message: Delivery) -> None:
                handled.append((name, message.payload))
                # Each waits until the other has a batch as well.
                wait_until(lambda: other in {name for name, _ in handled})

            return handle

        consumers[0].on()(handler_of("x", "y"))
        consumers[1].on()(handler_of("y", "x"))
        send(client, db, "1")
        send(client, db, "2")
        with running(consumers[0]) as first, running(consumers[1]) as second:
            wait_until(lambda: len(handled) == 2 or bool(first + second))
        assert sorted(payload or "" for _, payload in handled) == ["1", "2"]


class TestWaking:
    def test_a_tick_wakes_the_consumer(self, client: Client, db: Connection) -> None:
        consumer = Consumer(client.url, "q", "c", poll_interval=timedelta(hours=1))
        handled: list[Delivery] = []
        consumer.on()(handled.append)
        with running(consumer):
            wait_until(lambda: consumer.health().state == "idle")
            send(client, db, "1")
            wait_until(lambda: bool(handled))

    def test_behind_a_pooler_of_transactions_it_polls(self, client: Client, db: Connection) -> None:
        with relay_without_notifications(client.url) as url:
            consumer = Consumer(url, "q", "c", poll_interval=timedelta(milliseconds=50))
            handled: list[Delivery] = []
            consumer.on()(handled.append)
            with running(consumer):
                wait_until(lambda: consumer.health().state == "idle")
                send(client, db, "1")
                wait_until(lambda: bool(handled))

    def test_the_relay_of_that_test_drops_notifications(
        self, client: Client, db: Connection
    ) -> None:
        with (
            relay_without_notifications(client.url) as url,
            listening(url, ["q"]) as deaf,
            listening(client.url, ["q"]) as hearing,
        ):
            tick(db)
            hearing.wait(3600, threading.Event())
            started = time.monotonic()
            deaf.wait(0.2, threading.Event())
            assert time.monotonic() - started >= 0.2
