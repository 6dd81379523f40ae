"""A handler that is written wrongly loses no event: it is refused, or only its event fails."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import (
    Client,
    Consumer,
    Delivery,
    Event,
    HandlerTimeout,
    InvalidArgument,
    RateLimit,
    TransactionEnded,
)
from tests.client.consumer.support import is_acked, run_until, run_until_error, send, wait_until
from tests.support.queues import PATIENCE_SECONDS, Connection, rows, tick, value


@pytest.fixture
def consumer(client: Client) -> Consumer:
    return Consumer(client.url, "q", "c")


async def coroutine_function(message: Delivery, *more: Any) -> None: ...


@functools.wraps(coroutine_function)
def decorated(*args: Any) -> Any:
    return coroutine_function(*args)


def returns_a_generator(message: Delivery, *more: Any) -> Any:
    return (number for number in range(3))


def returns_an_async_generator(message: Delivery, *more: Any) -> Any:
    async def generate() -> AsyncIterator[int]:
        yield 1

    return generate()


class AsyncObject:
    """An object that is called as a coroutine function."""

    async def __call__(self, message: Delivery, *more: Any) -> None: ...


HALF_DONE: list[Any] = [decorated, returns_a_generator, returns_an_async_generator, AsyncObject()]


class TestResults:
    @pytest.mark.parametrize("handler", HALF_DONE)
    @pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"transactional": True}], ids=str)
    def test_a_result_that_nothing_runs_stops_the_consumer_without_an_ack(
        self, client: Client, db: Connection, handler: Any, options: dict[str, Any]
    ) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=options.get("concurrency", 1))
        consumer.on(transactional=options.get("transactional", False))(handler)
        send(client, db, "1")
        error = run_until_error(consumer)
        assert isinstance(error, InvalidArgument)
        assert getattr(handler, "__name__", "AsyncObject") in str(error)
        assert not is_acked(client)

    def test_the_result_of_a_plain_handler_is_awaited_among_coroutines(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        handled: list[str] = []

        async def work(message: Delivery) -> None:
            await asyncio.sleep(0)
            handled.append(message.payload or "")

        consumer.on("known")(work)
        consumer.on()(lambda message: work(message))
        send(client, db, Event("1", "known"), Event("2", "other"))
        run_until(consumer, lambda: is_acked(client))
        assert handled == ["1", "2"]

    def test_a_generator_among_coroutines_stops_the_consumer_without_an_ack(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        consumer.on("known")(coroutine_function)
        consumer.on()(returns_a_generator)
        send(client, db, Event("1", "known"), Event("2", "other"))
        assert "returns_a_generator" in str(run_until_error(consumer))
        assert not is_acked(client)


class TestRegistering:
    def test_generator_functions_are_refused(self, consumer: Consumer) -> None:
        def generator(message: Delivery) -> Iterator[None]:
            yield

        async def async_generator(message: Delivery) -> AsyncIterator[None]:
            yield

        for function in (generator, async_generator):
            with pytest.raises(InvalidArgument, match=function.__name__):
                consumer.on()(function)

    def test_a_function_with_too_few_or_many_parameters_is_refused(
        self, consumer: Consumer
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"one_parameter.*connection"):

            @consumer.on(transactional=True)
            def one_parameter(message: Delivery) -> None: ...

        with pytest.raises(InvalidArgument, match="two_parameters"):

            @consumer.on()
            def two_parameters(message: Delivery, connection: Any) -> None: ...

    @pytest.mark.parametrize("types", [(["a", "b"],), (print,), (1,)])
    def test_types_that_are_no_text_are_refused(
        self, consumer: Consumer, types: tuple[Any, ...]
    ) -> None:
        with pytest.raises(InvalidArgument, match="type of event"):
            consumer.on(*types)


ENDINGS: list[list[str]] = [
    ["rollback"],
    ["commit"],
    ["commit", "begin"],
    ["rollback", "begin"],
    ["rollback", "begin", "raise"],
    ["rollback", "begin", "nack"],
    ["commit", "dead letter"],
]


class TestTransactions:
    @pytest.mark.parametrize("ending", ENDINGS, ids=" ".join)
    def test_a_handler_that_ends_the_transaction_stops_the_consumer_without_an_ack(
        self, client: Client, db: Connection, consumer: Consumer, ending: list[str]
    ) -> None:
        handled: list[str | None] = []

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            handled.append(message.payload)
            if message.payload == "2":
                for statement in ending:
                    if statement == "raise":
                        raise ValueError
                    if statement == "nack":
                        message.nack()
                    elif statement == "dead letter":
                        message.dead_letter("no")
                    else:
                        connection.execute(statement)

        send(client, db, "1", "2", "3")
        error = run_until_error(consumer)
        assert isinstance(error, TransactionEnded)
        assert "handle" in str(error)
        assert handled == ["1", "2"]
        assert not is_acked(client)
        assert rows(db, "select from pgque.retry_queue") == []

    def test_only_the_event_fails_whose_handler_goes_on_after_an_sql_error(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        db.execute("create unique index on done (id)")
        db.execute("insert into done values ('twice')")

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute("insert into done values (%s)", (message.payload,))

        send(client, db, "1", "twice", "2")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select id from done order by id") == [("1",), ("2",), ("twice",)]
        assert rows(db, "select ev_data from pgque.retry_queue") == [("twice",)]

    def test_a_handler_may_go_on_after_a_block_of_its_own_that_failed(
        self, client: Client, db: Connection, consumer: Consumer
    ) -> None:
        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            try:
                with connection.transaction():
                    connection.execute("select 1 / 0")
            except psycopg.errors.DivisionByZero:
                connection.execute("insert into done values (%s)", (message.payload,))

        send(client, db, "1")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select id from done") == [("1",)]


class TestFailures:
    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_a_coroutine_that_awaits_a_cancelled_task_fails_alone(
        self, client: Client, db: Connection, concurrency: int
    ) -> None:
        consumer = Consumer(client.url, "q", "c", concurrency=concurrency)

        @consumer.on()
        async def handle(message: Delivery) -> None:
            if message.payload == "2":
                task = asyncio.create_task(asyncio.sleep(PATIENCE_SECONDS))
                task.cancel()
                await task

        send(client, db, "1", "2", "3")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select ev_data from pgque.retry_queue") == [("2",)]

    @pytest.mark.parametrize(
        "retry_after", [60, "1 minute", timedelta(seconds=-1), timedelta.max], ids=str
    )
    def test_a_wrong_retry_after_fails_only_its_event(
        self, client: Client, db: Connection, consumer: Consumer, retry_after: Any
    ) -> None:
        @consumer.on()
        def handle(message: Delivery) -> None:
            if message.payload == "2":
                message.nack(retry_after=retry_after)

        send(client, db, "1", "2", "3")
        run_until(consumer, lambda: is_acked(client))
        assert rows(db, "select ev_data from pgque.retry_queue") == [("2",)]

    @pytest.mark.parametrize("transactional", [False, True])
    def test_a_dead_letter_stays_one_if_the_handler_raises_afterwards(
        self, client: Client, db: Connection, consumer: Consumer, transactional: bool
    ) -> None:
        @consumer.on(transactional=transactional)
        def handle(message: Delivery, *connection: Any) -> None:
            message.dead_letter("broken")
            raise ValueError

        send(client, db, "1")
        run_until(consumer, lambda: is_acked(client))
        assert [letter.reason for letter in client.dead_letters("q")] == ["broken"]
        assert value(db, "select count(*) from pgque.retry_queue") == 0


class TestTime:
    def test_a_plain_handler_that_hangs_among_coroutines_ends_the_consumer(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(
            client.url, "q", "c", concurrency=2, max_batch_time=timedelta(milliseconds=300)
        )
        release = threading.Event()
        daemons: list[bool] = []

        @consumer.on("plain")
        def plain(message: Delivery) -> None:
            daemons.append(threading.current_thread().daemon)
            release.wait(10 * PATIENCE_SECONDS)

        consumer.on("coroutine")(coroutine_function)
        client.send("q", "1", type="coroutine")
        client.send("q", "2", type="plain")
        tick(db)
        try:
            assert isinstance(run_until_error(consumer), HandlerTimeout)
        finally:
            release.set()
        assert daemons == [True]
        assert is_acked(client)
        assert rows(db, "select ev_data from pgque.retry_queue") == [("2",)]

    def test_an_event_that_waits_for_its_rate_when_the_time_is_over_is_not_handled(
        self, client: Client, db: Connection
    ) -> None:
        consumer = Consumer(client.url, "q", "c", max_batch_time=timedelta(milliseconds=500))
        handled: list[str | None] = []
        rate = RateLimit(1, per=timedelta(seconds=2))
        consumer.on(rate_limit=rate)(lambda message: handled.append(message.payload))
        send(client, db, "1", "2")
        before = set(threading.enumerate())
        # No handler hangs, so the consumer goes on.
        run_until(consumer, lambda: is_acked(client))
        wait_until(lambda: set(threading.enumerate()) <= before)
        assert handled == ["1"]
        assert rows(db, "select ev_data from pgque.retry_queue") == [("2",)]
