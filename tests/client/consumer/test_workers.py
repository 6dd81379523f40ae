"""Several events at a time: in tasks, by key, by several processes."""

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import Consumer, Delivery, Event
from tests.client.consumer.support import Queue, running, wait_until
from tests.support.queues import PATIENCE_SECONDS, value

MANY = 20


def add(consumer: Consumer, handle: Any, is_async: bool, *types: str, **options: Any) -> None:
    """Adds a handler, as a coroutine function or as a plain one."""

    async def coroutine(message: Delivery) -> None:
        await asyncio.sleep(0)
        handle(message)

    consumer.on(*types, **options)(coroutine if is_async else handle)


class TestConcurrency:
    def test_as_many_events_are_handled_at_a_time_as_wanted(self, q: Queue) -> None:
        consumer = q.consumer(concurrency=3)
        together = asyncio.Barrier(3)

        @consumer.on()
        async def handle(message: Delivery) -> None:
            await asyncio.wait_for(together.wait(), PATIENCE_SECONDS)

        q.send("1", "2", "3", "4", "5", "6")
        q.run(consumer)
        assert q.retried() == []

    def test_an_event_that_fails_does_not_keep_the_others(self, q: Queue) -> None:
        consumer = q.consumer(concurrency=2)
        handled: list[str | None] = []

        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload in ("2", "4"):
                raise ValueError

        # Coroutine functions and plain ones are handled together.
        add(consumer, handle, True, "a")
        add(consumer, handle, False)
        q.send(Event("1", "a"), Event("2", "p"), Event("3", "p"), Event("4", "a"))
        q.run(consumer)
        assert sorted(map(str, handled)) == ["1", "2", "3", "4"]
        assert q.retried() == ["2", "4"]

    def test_events_of_a_key_are_handled_in_order(self, q: Queue) -> None:
        consumer = q.consumer(concurrency=4)
        handled: list[Delivery] = []
        busy: set[str | None] = set()

        @consumer.on()
        async def handle(message: Delivery) -> None:
            assert message.key not in busy
            busy.add(message.key)
            await asyncio.sleep(0)
            handled.append(message)
            busy.remove(message.key)

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

    def test_an_event_of_a_partitioned_consumer_is_not_dead_lettered_at_once(
        self, q: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = q.consumer(name="p", slots=1, start_at="latest")
        consumer.on()(lambda message: message.dead_letter("no"))
        with running(consumer):
            wait_until(lambda: consumer.health().state == "idle")
            q.send(Event("1", key="a"))
            wait_until(lambda: "Call nack" in caplog.text)
