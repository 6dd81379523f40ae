"""Several events at a time: in threads, in tasks, by key, within a time."""

import asyncio
import threading
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import Client, Consumer, Delivery, Event, HandlerTimeout, RateLimit
from tests.client.consumer.support import (
    is_acked,
    run_until,
    run_until_error,
    running,
    send,
    wait_until,
)
from tests.support.queues import PATIENCE_SECONDS, Connection, rows, tick

MANY = 20


class TestThreads:
    def test_as_many_events_are_handled_at_a_time_as_wanted(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=3)
        together = threading.Barrier(3)
        consumer.on()(lambda message: together.wait(PATIENCE_SECONDS))
        send(client, db, "1", "2", "3", "4", "5", "6")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select from pgque.retry_queue") == []

    def test_an_event_that_fails_does_not_keep_the_others(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=2)
        handled: list[str | None] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload == "2":
                raise ValueError

        send(client, db, "1", "2", "3")
        run_until(consumer, lambda: is_acked(client))
        assert sorted(map(str, handled)) == ["1", "2", "3"]
        assert rows(db, "select ev_data from pgque.retry_queue") == [("2",)]


def keyed_events() -> list[Event]:
    return [Event(f"{n}", key=f"key {n % 3}") for n in range(MANY)]


def by_key(messages: list[Delivery]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for message in messages:
        found[message.key].append(int(message.payload or ""))
    return found


class TestKeys:
    def test_threads_handle_events_of_a_key_in_order(self, client: Client, db: Connection) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=4)
        handled: list[Delivery] = []
        busy: set[str | None] = set()

        @consumer.on()
        def handle(message: Delivery) -> None:
            assert message.key not in busy
            busy.add(message.key)
            handled.append(message)
            busy.remove(message.key)

        send(client, db, *keyed_events())
        run_until(consumer, lambda: is_acked(client))
        assert len(handled) == MANY
        assert all(numbers == sorted(numbers) for numbers in by_key(handled).values())

    def test_tasks_handle_events_of_a_key_in_order(self, client: Client, db: Connection) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=4)
        handled: list[Delivery] = []
        busy: set[str | None] = set()

        @consumer.on()
        async def handle(message: Delivery) -> None:
            assert message.key not in busy
            busy.add(message.key)
            await asyncio.sleep(0)
            handled.append(message)
            busy.remove(message.key)

        send(client, db, *keyed_events())
        run_until(consumer, lambda: is_acked(client))
        assert len(handled) == MANY
        assert all(numbers == sorted(numbers) for numbers in by_key(handled).values())


class TestTasks:
    def test_coroutine_functions_are_handled_together_with_plain_ones(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=2)
        handled: list[str | None] = []

        @consumer.on("a")
        async def coroutine(message: Delivery) -> None:
            await asyncio.sleep(0)
            handled.append(message.payload)

        @consumer.on("p")
        def plain(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload == "4":
                raise ValueError

        send(client, db, Event("1", "a"), Event("2", "p"), Event("3", "a"), Event("4", "p"))
        run_until(consumer, lambda: is_acked(client))
        assert sorted(map(str, handled)) == ["1", "2", "3", "4"]
        assert rows(db, "select ev_data from pgque.retry_queue") == [("4",)]

    def test_a_consumer_runs_within_an_event_loop(self, client: Client, db: Connection) -> None:
        consumer = Consumer(client.url, "q", "c")
        loops = []

        @consumer.on()
        async def handle(message: Delivery) -> None:
            loops.append(asyncio.get_running_loop())

        send(client, db, "1")

        async def main() -> asyncio.AbstractEventLoop:
            task = asyncio.create_task(consumer.run_async())
            while not loops:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return asyncio.get_running_loop()

        assert asyncio.run(main()) is not None
        assert len(loops) == 1
        assert is_acked(client)

    def test_an_error_ends_the_consumer_within_an_event_loop(self, client: Client) -> None:
        with pytest.raises(Exception, match="no handler"):
            asyncio.run(Consumer(client.url, "q", "c").run_async())


class TestTime:
    def test_a_handler_that_hangs_has_its_event_delivered_again(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", max_batch_time=timedelta(milliseconds=300))
        handled: list[str | None] = []
        hangs = threading.Event()

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if message.payload == "2":
                hangs.wait(PATIENCE_SECONDS)

        send(client, db, "1", "2", "3")
        error = run_until_error(consumer)
        hangs.set()

        assert isinstance(error, HandlerTimeout)
        assert handled == ["1", "2"]
        assert is_acked(client)
        again = rows(db, "select ev_data from pgque.retry_queue order by ev_id")
        assert again == [("2",), ("3",)]

    def test_a_coroutine_that_hangs_is_cancelled_and_the_consumer_goes_on(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", max_batch_time=timedelta(milliseconds=300))
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

        send(client, db, "1", "hang", "3")
        with running(consumer) as errors:
            wait_until(lambda: handled == ["1", "cancelled"] and is_acked(client))
            client.maint()  # the third was not begun, so it is due at once
            tick(db)
            wait_until(lambda: handled == ["1", "cancelled", "3"])
        assert errors == []
        assert rows(db, "select ev_data from pgque.retry_queue") == [("hang",)]

    def test_the_lease_lasts_as_long_as_the_handlers(self, client: Client, db: Connection) -> None:
        consumer, standby = (
            Consumer(
                client.url,
                "q",
                "c",
                lease=timedelta(seconds=1),
                poll_interval=timedelta(milliseconds=50),
            )
            for _ in range(2)
        )
        handled: list[str | None] = []

        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            threading.Event().wait(2.5)

        consumer.on()(handle)
        standby.on()(handle)
        with running(consumer) as first, running(standby) as second:
            wait_until(lambda: all(c.health().state == "idle" for c in (consumer, standby)))
            send(client, db, "1")
            wait_until(lambda: is_acked(client))
        assert (handled, first, second) == (["1"], [], [])


class TestRates:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_events_wait_for_a_token(self, client: Client, db: Connection, is_async: bool) -> None:
        consumer = Consumer(client.url, "q", "c")
        handled: list[str | None] = []
        limit = RateLimit(2, per=timedelta(hours=1))

        if is_async:

            @consumer.on("mail", rate_limit=limit)
            async def send_mail(message: Delivery) -> None:
                handled.append(message.payload)

        else:

            @consumer.on("mail", rate_limit=limit)
            def send_mail_at_once(message: Delivery) -> None:
                handled.append(message.payload)

        consumer.on()(lambda message: handled.append(message.payload))
        send(client, db, *(Event(f"{n}", "mail") for n in range(2)), "other")
        run_until(consumer, lambda: is_acked(client))
        assert handled == ["0", "1", "other"]

        limiter: Any = consumer._handlers.by_type["mail"].limiter
        assert not limiter.try_acquire("mail", blocking=False)


class TestPartitions:
    def test_a_partitioned_consumer_handles_all_slots(self, client: Client, db: Connection) -> None:
        consumers = [
            Consumer(
                client.url,
                "q",
                "p",
                slots=4,
                start_at="latest",
                poll_interval=timedelta(milliseconds=50),
            )
            for _ in range(2)
        ]
        handled: list[Delivery] = []
        for consumer in consumers:
            consumer.on()(handled.append)
        with running(consumers[0]) as first, running(consumers[1]) as second:
            wait_until(lambda: all(c.health().state == "idle" for c in consumers))
            send(client, db, *(Event(f"{n}", key=f"key {n % 7}") for n in range(MANY)))
            wait_until(lambda: len(handled) >= MANY or bool(first + second))
        assert (first, second) == ([], [])
        assert sorted(int(m.payload or "") for m in handled) == list(range(MANY))
        assert all(numbers == sorted(numbers) for numbers in by_key(handled).values())

    def test_later_events_of_a_key_wait_for_one_that_failed(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(
            client.url,
            "q",
            "p",
            slots=1,
            on_failure="pause",
            start_at="latest",
            retry_after=timedelta(0),
            poll_interval=timedelta(milliseconds=50),
        )
        handled: list[str | None] = []

        @consumer.on()
        def handle(message: Delivery) -> None:
            handled.append(message.payload)
            if handled.count("a1") == 1 and message.payload == "a1":
                raise ValueError

        with running(consumer) as errors:
            wait_until(lambda: consumer.health().state == "idle")
            send(client, db, Event("a1", key="a"), Event("b1", key="b"), Event("a2", key="a"))
            wait_until(lambda: len(handled) >= 4 or bool(errors))
        assert errors == []
        assert handled == ["a1", "b1", "a1", "a2"]

    def test_an_event_of_a_partitioned_consumer_is_not_dead_lettered_at_once(
        self, client: Client, db: Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = Consumer(client.url, "q", "p", slots=1, start_at="latest")
        consumer.on()(lambda message: message.dead_letter("no"))
        with running(consumer):
            wait_until(lambda: consumer.health().state == "idle")
            send(client, db, Event("1", key="a"))
            wait_until(lambda: "Call nack" in caplog.text)
