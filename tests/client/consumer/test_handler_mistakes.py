"""A handler that is written wrongly loses no event: it is refused, or only its event fails."""

import functools
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import Consumer, Delivery, InvalidArgument, TransactionEnded
from tests.client.consumer.support import Queue, run_until_error


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


def test_a_result_that_nothing_runs_stops_the_consumer_without_an_ack(q: Queue) -> None:
    q.send("1")
    for handler, transactional in itertools.product(HALF_DONE, (False, True)):
        consumer = q.consumer()
        consumer.on(transactional=transactional)(handler)
        error = run_until_error(consumer)
        assert isinstance(error, InvalidArgument)
        assert getattr(handler, "__name__", "AsyncObject") in str(error)
        assert not q.is_acked()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"queue": ["q", "r"]}, "one consumer for each"),
        ({"retry_after": 60}, "retry_after=60"),
        ({"retry_after": timedelta(seconds=-1)}, "retry_after"),
        ({"lease": 60}, "lease=60"),
        ({"lease": timedelta(0)}, "lease"),
        ({"poll_interval": 5}, "poll_interval=5"),
        ({"poll_interval": timedelta(0)}, "poll_interval"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        Consumer(**{"url": "", "queue": "q", "name": "c", **options})


def test_functions_that_are_no_handlers_are_refused() -> None:
    def generator(message: Delivery) -> Iterator[None]:
        yield

    async def async_generator(message: Delivery) -> AsyncIterator[None]:
        yield

    def one_parameter(message: Delivery) -> None: ...
    def two_parameters(message: Delivery, connection: Any) -> None: ...

    consumer = Consumer("", "q", "c")
    for types in (["a", "b"], print, 1):
        with pytest.raises(InvalidArgument, match="type of event"):
            consumer.on(types)  # type: ignore[arg-type]
    for is_transactional, function, words in (
        (False, generator, "generator"),
        (False, async_generator, "async_generator"),
        (True, one_parameter, r"one_parameter.*connection"),
        (False, two_parameters, "two_parameters"),
        (True, coroutine_function, "coroutine"),
        (False, coroutine_function, "coroutine"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            consumer.on("x", transactional=is_transactional)(function)
    with pytest.raises(InvalidArgument, match=r"@consumer\.on"):
        consumer.run()
    for types in (("a",), ()):
        consumer.on(*types)(print)
        with pytest.raises(InvalidArgument, match="already: print"):
            consumer.on(*types)(print)


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
    def test_a_handler_that_ends_the_transaction_stops_the_consumer_without_an_ack(
        self, q: Queue
    ) -> None:
        handled: list[str | None] = []
        ending: list[str] = []

        def handle(message: Delivery, connection: Any) -> None:
            handled.append(message.payload)
            for statement in ending if message.payload == "2" else ():
                if statement == "raise":
                    raise ValueError
                if statement == "nack":
                    message.nack()
                elif statement == "dead letter":
                    message.dead_letter("no")
                else:
                    connection.execute(statement)

        q.send("1", "2", "3")
        for ending in ENDINGS:
            handled.clear()
            consumer = q.consumer()
            consumer.on(transactional=True)(handle)
            error = run_until_error(consumer)
            assert isinstance(error, TransactionEnded), ending
            assert "handle" in str(error)
            assert handled == ["1", "2"], ending
            assert not q.is_acked()
            assert q.retried() == []

    def test_only_the_event_fails_whose_handler_goes_on_after_an_sql_error(self, q: Queue) -> None:
        consumer = q.consumer()
        q.db.execute("create unique index on done (id)")
        q.db.execute("insert into done (id) values ('twice')")

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute("insert into done (id) values (%s)", (message.payload,))

        q.send("1", "twice", "2")
        q.run(consumer)
        assert sorted(q.done()) == ["1", "2", "twice"]
        assert q.retried() == ["twice"]

    def test_a_handler_may_go_on_after_a_block_of_its_own_that_failed(self, q: Queue) -> None:
        consumer = q.consumer()

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Any) -> None:
            try:
                with connection.transaction():
                    connection.execute("select 1 / 0")
            except psycopg.errors.DivisionByZero:
                connection.execute("insert into done (id) values (%s)", (message.payload,))

        q.send("1")
        q.run(consumer)
        assert q.done() == ["1"]


class TestFailures:
    def test_a_wrong_retry_after_fails_only_its_event(self, q: Queue) -> None:
        consumer = q.consumer()
        wrong = {"2": 60, "3": "1 minute", "4": timedelta(seconds=-1), "5": timedelta.max}

        @consumer.on()
        def handle(message: Delivery) -> None:
            if message.payload in wrong:
                message.nack(retry_after=wrong[message.payload])  # type: ignore[arg-type]

        q.send("1", *wrong, "6")
        q.run(consumer)
        assert q.retried() == list(wrong)

    @pytest.mark.parametrize("transactional", [False, True])
    def test_a_dead_letter_stays_one_if_the_handler_raises_afterwards(
        self, q: Queue, transactional: bool
    ) -> None:
        consumer = q.consumer()

        @consumer.on(transactional=transactional)
        def handle(message: Delivery, *connection: Any) -> None:
            message.dead_letter("broken")
            raise ValueError

        q.send("1")
        q.run(consumer)
        assert [letter.reason for letter in q.client.dead_letters("q")] == ["broken"]
        assert q.retried() == []
