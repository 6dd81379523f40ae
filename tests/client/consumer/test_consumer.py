"""A consumer handles each event by its type, and loses none."""

import logging
import tracemalloc
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import Consumer, ConsumerNotFound, Delivery, Event, HandlerMissing, Limits
from pgque_dagster.client.consumer import consumer as consumers
from tests.client.consumer.support import (
    Queue,
    collect,
    noted_waits,
    run_until,
    run_until_error,
    running,
)
from tests.support.runner.waiting import wait_until


class TestHandlers:
    def test_each_type_has_its_handler_and_all_others_one(self, q: Queue) -> None:
        consumer = q.consumer()
        handled: list[tuple[str, Any]] = []
        consumer.on("a", "b")(lambda message: handled.append(("ab", message.json())))
        consumer.on()(lambda message: handled.append(("other", message.json())))

        q.send(Event({"n": 1}, "a"), Event({"n": 2}, "z"), Event({"n": 3}, "b"))
        q.run(consumer)
        assert handled == [("ab", {"n": 1}), ("other", {"n": 2}), ("ab", {"n": 3})]

    def test_a_type_without_a_handler_stops_before_any_event_is_handled(self, q: Queue) -> None:
        consumer = q.consumer()
        handled = collect(consumer, "a")
        q.send(Event("1", "a"), Event("2", "b"), Event("3", "c"))

        error = run_until_error(consumer)

        assert isinstance(error, HandlerMissing)
        assert 'of q/c has events of type "b", "c"' in str(error)
        assert '@consumer.on("b", "c")' in str(error)
        assert handled == []
        assert len(q.receive()) == 3  # the lease is released, too

    def test_a_consumer_registers_only_if_told_where_to_start(self, q: Queue) -> None:
        q.send("before")
        unknown = q.consumer(name="new")
        unknown.on()(print)
        with pytest.raises(ConsumerNotFound, match="new"):
            unknown.run()
        consumer = q.consumer(name="new", start_at="earliest")
        handled = collect(consumer)
        run_until(consumer, lambda: handled == ["before"])

    def test_a_consumer_that_was_stopped_can_run_again(self, q: Queue) -> None:
        consumer = q.consumer()
        handled = collect(consumer)
        for _ in range(2):
            q.send("1")
            q.run(consumer)
        assert handled == ["1", "1"]


class TestFailures:
    def test_an_event_whose_handler_raises_is_delivered_again(
        self, q: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = q.consumer(retry_after=timedelta(0))
        handled: list[tuple[str | None, int | None]] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append((message.payload, message.retry_count))
            if message.payload == "bad" and not message.retry_count:
                raise ValueError("no such customer")

        q.send("good", "bad", "fine")
        with running(consumer):
            wait_until(lambda: len(handled) == 3 and q.is_acked())
            q.client.maint()
            q.db.tick()
            wait_until(lambda: len(handled) == 4)
        assert handled == [("good", None), ("bad", None), ("fine", None), ("bad", 1)]
        (record,) = [r for r in caplog.records if r.exc_info]
        assert (record.queue, record.consumer, record.event_type) == ("q", "c", "default")  # type: ignore[attr-defined]

    def test_an_event_becomes_a_dead_letter_with_the_error_when_its_retries_run_out(
        self, q: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not captured, because no test report can hold half a surrogate pair.
        caplog.set_level(logging.CRITICAL, logger="pgque.consumer")
        q.client.configure_queue("q", max_retries=0)
        consumer = q.consumer()

        @consumer.on()
        def handle(message: Delivery) -> None:
            raise ValueError("no such\0 \ud800customer")

        q.send("bad")
        q.run(consumer)
        (letter,) = q.client.dead_letters("q")
        assert (letter.payload, letter.reason) == ("bad", "ValueError: no such ?customer")

    def test_an_error_without_a_text_fails_its_event_alone(
        self, q: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Untold(Exception):
            def __str__(self) -> str:
                raise ValueError("no text")

        class OfErrors(logging.Formatter):  # as PySpark's, which asks the error for its text
            def format(self, record: logging.LogRecord) -> str:
                return f"{record.getMessage()} {record.exc_info and str(record.exc_info[1])}"

        monkeypatch.setattr(caplog.handler, "formatter", OfErrors())
        consumer = q.consumer()

        @consumer.on()
        def handle(message: Delivery) -> None:
            if message.payload == "bad":
                raise Untold

        q.send("bad", "good")
        q.run(consumer)
        assert q.retried() == ["bad"]

    def test_a_handler_may_nack_and_dead_letter_by_itself(self, q: Queue) -> None:
        consumer = q.consumer()

        @consumer.on()
        def handle(message: Delivery) -> None:
            if message.payload == "later":
                message.nack(retry_after=timedelta(hours=3), reason="busy")
            if message.payload == "never":
                message.dead_letter("unknown product")

        q.send("later", "never", "now")
        q.run(consumer)
        assert [letter.reason for letter in q.client.dead_letters("q")] == ["unknown product"]
        hours = "round(extract(epoch from ev_retry_after - now()) / 3600)"
        assert q.db.rows(f"select ev_data, {hours} from pgque.retry_queue") == [("later", 3)]


def insert(message: Delivery, connection: Any) -> None:
    connection.execute("insert into done (id) values (%s)", (message.payload,))


class TestTransactional:
    def test_what_a_handler_writes_commits_with_the_ack(self, q: Queue) -> None:
        consumer = q.consumer()
        seen = []

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            insert(message, connection)
            seen.append(q.db.value("select count(*) from done"))

        q.send("1", "2")
        q.run(consumer)
        assert seen == [0, 0]
        assert q.done() == ["1", "2"]

    def test_what_a_handler_wrote_is_rolled_back_if_the_event_is_not_done(self, q: Queue) -> None:
        consumer = q.consumer()

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            insert(message, connection)
            if message.payload == "raises":
                connection.execute("select 1 / 0")
            if message.payload == "nacks":
                message.nack()
            if message.payload == "dead":
                message.dead_letter("no")

        q.send("1", "raises", "nacks", "dead", "2")
        q.run(consumer)
        assert q.done() == ["1", "2"]
        assert q.retried() == ["raises", "nacks"]
        assert q.payloads("dead_letter") == ["dead"]

    def test_an_event_that_only_the_commit_refuses_fails_alone(self, q: Queue) -> None:
        q.db.execute("create table known (id text primary key)")
        q.db.execute("insert into known values ('1'), ('2')")
        q.db.execute("alter table done add foreign key (id) references known initially deferred")
        # Its error is expected at the statement.
        q.db.execute("alter table done add unique (id) deferrable")
        consumer = Consumer(q.url, "q", "c")

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            insert(message, connection)
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                insert(message, connection)

        waits = noted_waits(consumer)
        with running(consumer) as errors:
            wait_until(lambda: bool(errors) or waits.is_set())
            q.send("1", "unknown", "2")
            wait_until(lambda: bool(errors) or q.retried() == ["unknown"])
        assert (errors, q.done()) == ([], ["1", "2"])

    def test_nothing_is_written_twice_if_the_lease_was_lost(self, q: Queue) -> None:
        consumer = q.consumer()
        taken: list[Any] = []

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            insert(message, connection)
            if not taken:
                info = q.client.lease_info("q", "c")
                assert info is not None and info.owner is not None
                # The same owner's claim raises the epoch, as another one does after the lease.
                taken.append(q.client.claim("q", "c", owner=info.owner))
                taken[0].release()

        q.send("1")
        q.run(consumer)
        assert q.done() == ["1"]


class TestBatches:
    def test_a_large_batch_is_not_held_as_objects(
        self, q: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumers, "_PAGE", 1000)
        count = 20_000
        q.client.copy_events("q", (str(number) for number in range(count)))
        q.tick()
        consumer = q.consumer()
        peaks: list[float] = []
        handled: list[int] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            if not peaks:
                peaks.append(tracemalloc.get_traced_memory()[1] / count)
            handled.append(int(message.payload or ""))

        tracemalloc.start()
        q.run(consumer)
        tracemalloc.stop()
        assert peaks[0] < 200  # bytes
        assert handled == list(range(count))

    @pytest.mark.parametrize("is_transactional", [False, True])
    def test_a_batch_of_several_pages_is_handled_as_one(
        self, q: Queue, is_transactional: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumers, "_PAGE", 2)
        first, consumer = q.consumer(), q.consumer()
        handled: list[str | None] = []

        def handle(message: Delivery, *connection: Any) -> None:
            handled.append(message.payload)
            if message.payload in "25":
                message.nack()

        for each in (first, consumer):
            each.on("default", transactional=is_transactional)(handle)
        q.send(*(Event(each, key="k") for each in "123456"), Event("7", type="of no handler"))
        assert isinstance(run_until_error(first), HandlerMissing)
        assert handled == []
        consumer.on("of no handler")(print)
        q.run(consumer)
        assert (handled, q.retried()) == (list("123456"), ["2", "5"])

    def test_limits_say_which_batches_are_opened(self, q: Queue) -> None:
        consumer = q.consumer(limits=Limits(min_count=3))
        handled = collect(consumer)
        for event in ("1", "2"):
            q.send(event)
        waits = noted_waits(consumer)
        with running(consumer) as errors:
            wait_until(waits.is_set)
            assert handled == []
            q.send("3")
            wait_until(lambda: len(handled) == 3)
        assert errors == []

    def test_several_processes_share_the_batches_as_subconsumers(self, q: Queue) -> None:
        handled: list[tuple[str, str | None]] = []
        consumers = [q.consumer(subconsumer=name) for name in "xy"]

        def handler_of(name: str, other: str) -> Any:
            def handle(message: Delivery) -> None:
                handled.append((name, message.payload))
                # Each waits until the other has a batch as well.
                wait_until(lambda: other in {name for name, _ in handled})

            return handle

        consumers[0].on()(handler_of("x", "y"))
        consumers[1].on()(handler_of("y", "x"))
        q.send("1")
        q.send("2")
        with running(consumers[0]) as first, running(consumers[1]) as second:
            wait_until(lambda: len(handled) == 2 or bool(first + second))
        assert sorted(payload or "" for _, payload in handled) == ["1", "2"]

    def test_a_tick_wakes_the_consumer(self, q: Queue) -> None:
        consumer = q.consumer(poll_interval=timedelta(hours=1))
        handled = collect(consumer)
        waits = noted_waits(consumer)
        with running(consumer):
            wait_until(waits.is_set)
            q.send("1")
            wait_until(lambda: handled == ["1"])
