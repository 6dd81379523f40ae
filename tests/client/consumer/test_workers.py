"""Several events at a time: in threads, in tasks, by key, within a time."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import Consumer, Delivery, Event, HandlerTimeout, RateLimit
from tests.client.consumer.support import Queue, collect, run_until_error, running, wait_until
from tests.support.queues import PATIENCE_SECONDS, tick, value

MANY = 20
BRIEF = timedelta(milliseconds=300)


def add(consumer: Consumer, handle: Any, is_async: bool, *types: str, **options: Any) -> None:
    """Adds a handler, as a coroutine function or as a plain one."""

    async def coroutine(message: Delivery) -> None:
        await asyncio.sleep(0)
        handle(message)

    consumer.on(*types, **options)(coroutine if is_async else handle)


class TestConcurrency:
    def test_as_many_events_are_handled_at_a_time_as_wanted(self, q: Queue) -> None:
        consumer = q.consumer(concurrency=3)
        together = threading.Barrier(3)
        consumer.on()(lambda message: together.wait(PATIENCE_SECONDS))
        q.send("1", "2", "3", "4", "5", "6")
        q.run(consumer)
        assert q.retried() == []

    @pytest.mark.parametrize("is_async", [False, True])
    def test_an_event_that_fails_does_not_keep_the_others(self, q: Queue, is_async: bool) -> None:
        consumer = q.consumer(concurrency=2)
        handled: list[str | None] = []

        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload in ("2", "4"):
                raise ValueError

        # Coroutine functions and plain ones are handled together.
        add(consumer, handle, is_async, "a")
        add(consumer, handle, False)
        q.send(Event("1", "a"), Event("2", "p"), Event("3", "p"), Event("4", "a"))
        q.run(consumer)
        assert sorted(map(str, handled)) == ["1", "2", "3", "4"]
        assert q.retried() == ["2", "4"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_events_of_a_key_are_handled_in_order(self, q: Queue, is_async: bool) -> None:
        consumer = q.consumer(concurrency=4)
        handled: list[Delivery] = []
        busy: set[str | None] = set()

        @contextmanager
        def alone(message: Delivery) -> Iterator[None]:
            assert message.key not in busy
            busy.add(message.key)
            yield
            handled.append(message)
            busy.remove(message.key)

        def plain(message: Delivery) -> None:
            with alone(message):
                pass

        async def coroutine(message: Delivery) -> None:
            with alone(message):
                await asyncio.sleep(0)

        consumer.on()(coroutine if is_async else plain)
        q.send(*(Event(f"{n}", key=f"key {n % 3}") for n in range(MANY)))
        q.run(consumer)
        assert len(handled) == MANY
        assert all(numbers == sorted(numbers) for numbers in by_key(handled).values())


def by_key(messages: list[Delivery]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for message in messages:
        found[message.key].append(int(message.payload or ""))
    return found


class TestEventLoop:
    def test_a_consumer_runs_within_an_event_loop(self, q: Queue) -> None:
        consumer = q.consumer()
        handled: list[str | None] = []
        add(consumer, lambda message: handled.append(message.payload), True)
        q.send("1")

        async def main() -> None:
            task = asyncio.create_task(consumer.run_async())
            while not handled:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert handled == ["1"]
        assert q.is_acked()

    def test_an_error_ends_the_consumer_within_an_event_loop(self, q: Queue) -> None:
        with pytest.raises(Exception, match="no handler"):
            asyncio.run(q.consumer().run_async())


class TestTime:
    def test_a_handler_that_hangs_has_its_event_delivered_again(self, q: Queue) -> None:
        consumer = q.consumer(max_batch_time=BRIEF)
        handled: list[str | None] = []
        hangs = threading.Event()

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload == "2":
                hangs.wait(PATIENCE_SECONDS)

        q.send("1", "2", "3")
        error = run_until_error(consumer)
        hangs.set()

        assert isinstance(error, HandlerTimeout)
        assert handled == ["1", "2"]
        assert q.is_acked()
        assert q.retried() == ["2", "3"]

    def test_a_coroutine_that_hangs_is_cancelled_and_the_consumer_goes_on(self, q: Queue) -> None:
        consumer = q.consumer(max_batch_time=BRIEF)
        handled: list[str] = []

        @consumer.on()
        async def handle(message: Delivery) -> None:
            if message.payload == "hang":
                try:
                    await asyncio.sleep(PATIENCE_SECONDS)
                except asyncio.CancelledError:
                    handled.append("cancelled")
                    raise
            handled.append(message.payload or "")

        q.send("1", "hang", "3")
        with running(consumer) as errors:
            wait_until(lambda: handled == ["1", "cancelled"] and q.is_acked())
            q.client.maint()  # the third was not begun, so it is due at once
            tick(q.db)
            wait_until(lambda: handled == ["1", "cancelled", "3"])
        assert errors == []
        assert q.retried() == ["hang"]

    def test_a_plain_handler_that_hangs_among_coroutines_ends_the_consumer(self, q: Queue) -> None:
        consumer = q.consumer(concurrency=2, max_batch_time=BRIEF)
        release = threading.Event()
        daemons: list[bool] = []

        @consumer.on("plain")
        def plain(message: Delivery) -> None:
            daemons.append(threading.current_thread().daemon)
            release.wait(10 * PATIENCE_SECONDS)

        add(consumer, lambda message: None, True, "coroutine")
        q.send(Event("1", "coroutine"), Event("2", "plain"))
        try:
            assert isinstance(run_until_error(consumer), HandlerTimeout)
        finally:
            release.set()
        assert daemons == [True]
        assert q.is_acked()
        assert q.retried() == ["2"]

    def test_the_lease_is_renewed_while_a_handler_works(self, q: Queue) -> None:
        consumer = q.consumer(lease=timedelta(seconds=1.5))
        ends = "select lease_until from pgque.get_lease_info('q', 'c')"

        @consumer.on()
        def handle(message: Delivery) -> None:
            first = value(q.db, ends)
            wait_until(lambda: value(q.db, ends) > first)

        q.send("1")
        q.run(consumer)
        assert q.retried() == []


class TestRates:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_events_wait_for_a_token(self, q: Queue, is_async: bool) -> None:
        consumer = q.consumer()
        limit = RateLimit(2, per=timedelta(hours=1))
        handled = collect(consumer)
        add(consumer, lambda each: handled.append(each.payload), is_async, "mail", rate_limit=limit)
        q.send(*(Event(f"{n}", "mail") for n in range(2)), "other")
        q.run(consumer)
        assert handled == ["0", "1", "other"]

        limiter: Any = consumer._handlers.by_type["mail"].limiter
        assert not limiter.try_acquire("mail", blocking=False)

    def test_an_event_that_waits_for_its_rate_when_the_time_is_over_is_not_handled(
        self, q: Queue
    ) -> None:
        consumer = q.consumer(max_batch_time=BRIEF)
        handled = collect(consumer, rate_limit=RateLimit(1, per=2 * BRIEF))
        q.send("1", "2")
        before = set(threading.enumerate())
        # No handler hangs, so the consumer goes on.
        q.run(consumer)
        wait_until(lambda: set(threading.enumerate()) <= before)
        assert (handled, q.retried()) == (["1"], ["2"])


class TestPartitions:
    def test_a_partitioned_consumer_handles_all_slots(self, q: Queue) -> None:
        consumers = [q.consumer(name="p", slots=4, start_at="latest") for _ in range(2)]
        handled: list[Delivery] = []
        for consumer in consumers:
            consumer.on()(handled.append)
        with running(consumers[0]) as first, running(consumers[1]) as second:
            wait_until(lambda: all(c.health().state == "idle" for c in consumers))
            q.send(*(Event(f"{n}", key=f"key {n % 7}") for n in range(MANY)))
            wait_until(lambda: len(handled) >= MANY or bool(first + second))
        assert (first, second) == ([], [])
        assert sorted(int(m.payload or "") for m in handled) == list(range(MANY))
        assert all(numbers == sorted(numbers) for numbers in by_key(handled).values())

    def test_later_events_of_a_key_wait_for_one_that_failed(self, q: Queue) -> None:
        consumer = q.consumer(
            name="p", slots=1, on_failure="pause", start_at="latest", retry_after=timedelta(0)
        )
        handled: list[str | None] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if handled == ["a1"]:
                raise ValueError

        with running(consumer) as errors:
            wait_until(lambda: consumer.health().state == "idle")
            q.send(Event("a1", key="a"), Event("b1", key="b"), Event("a2", key="a"))
            wait_until(lambda: len(handled) >= 4 or bool(errors))
        assert errors == []
        assert handled == ["a1", "b1", "a1", "a2"]

    def test_an_event_of_a_partitioned_consumer_is_not_dead_lettered_at_once(
        self, q: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = q.consumer(name="p", slots=1, start_at="latest")
        consumer.on()(lambda message: message.dead_letter("no"))
        with running(consumer):
            wait_until(lambda: consumer.health().state == "idle")
            q.send(Event("1", key="a"))
            wait_until(lambda: "Call nack" in caplog.text)
