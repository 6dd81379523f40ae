"""Serial queues, the add-on qgres: numbered entries without gaps, or one remover at a time.

docs/qgres.md has the guarantees. `Client.serial` and `AsyncClient.serial` are the entrances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .encoding import Dataclass, Model, json_text
from .errors import InvalidArgument
from .operation import AsyncFace, Call, Face, Row, first, nothing, operation
from .ranges import checked_count

QueueType = Literal["SP", "SR"]
Json = Mapping[str, Any] | Sequence[Any] | Dataclass | Model | int | float | bool

_TYPES: dict[str, QueueType] = {"Serial Publisher": "SP", "Serial Remover": "SR"}


@dataclass(frozen=True)
class SerialQueue:
    """A serial queue.

    Attributes:
        queue_id: its number, which stays the same.
        name: its name, which is case-insensitive.
        type: `SP`, one publisher at a time, or `SR`, one remover at a time.
    """

    queue_id: int
    name: str
    type: QueueType


@dataclass(frozen=True)
class Entry:
    """An entry of a serial queue. Any of its parts may be None."""

    binary: bytes | None
    json: Any
    text: str | None


@dataclass(frozen=True)
class NumberedEntry(Entry):
    """An entry of an SP queue.

    Attributes:
        number: the entry's place in its queue, from 1 without gaps.
    """

    number: int


class SerialOperations:
    """The operations on serial queues, for both clients."""

    def __init__(self, session: Any) -> None:
        self.session = session

    @operation
    def create(self, queue: str, type: QueueType) -> Call[int]:
        """Creates a queue; returns its number. A name that is taken is refused.

        Args:
            queue: the queue's name.
            type: `SP` for Serial Publisher or `SR` for Serial Remover.

        Raises:
            InvalidArgument: if it is another type.
        """
        if type not in _TYPES.values():
            raise InvalidArgument(
                f"there is no type {type!r} of serial queues",
                "Pass SP (Serial Publisher) or SR (Serial Remover).",
            )
        sql = "select qgres.queue__create(%s, qgres._queue_type__sanitize(%s))"
        return Call(sql, (queue, type), first)

    @operation
    def drop(self, queue: str, *, force: bool = False) -> Call[None]:
        """Drops a queue. Without `force`, one with consumers or unread entries is refused."""
        sql = "select qgres.queue__drop(qgres.queue__get_id(%s), %s)"
        return Call(sql, (queue, force), nothing)

    @operation
    def queues(self) -> Call[list[SerialQueue]]:
        """Returns all serial queues, by name."""
        return Call(
            "select queue_id, queue_name, queue_type::text from qgres.queue order by queue_name",
            (),
            lambda rows: [SerialQueue(number, name, _TYPES[kind]) for number, name, kind in rows],
        )

    @operation
    def register(self, queue: str, consumer: str) -> Call[None]:
        """Registers a consumer on an SP queue. It gets what is published from now on."""
        return Call("select qgres.consumer__register(%s, %s)", (queue, consumer), nothing)

    @operation
    def unregister(self, queue: str, consumer: str) -> Call[None]:
        """Unregisters a consumer of an SP queue."""
        return Call("select qgres.consumer__drop(%s, %s)", (queue, consumer), nothing)

    @operation
    def publish(
        self,
        queue: str,
        *,
        text: str | None = None,
        json: Json | None = None,
        binary: bytes | None = None,
    ) -> Call[int]:
        """Publishes an entry to an SP queue; returns its number.

        Waits until other transactions that published to this queue have ended.

        Args:
            queue: the queue's name.
            text: the entry's text.
            json: its jsonb part: what can be written as JSON.
            binary: its bytea part.

        Raises:
            InvalidArgument: if `json` cannot be written as JSON.
        """
        sql = 'select qgres."Publish"(%s::text, %s::bytea, %s::jsonb, %s::text)'
        return Call(sql, (queue, *_parts(text, json, binary)), first)

    @operation
    def consume(
        self, queue: str, consumer: str, *, limit: int | None = None
    ) -> Call[list[NumberedEntry]]:
        """Returns a consumer's next entries in order, and moves it behind them.

        The commit is the ack: process the entries in the same `transaction()` block, so that they
        come again if the block fails. Outside of a block they count as read at once.
        """
        return Call(
            "select bytea, jsonb, text, sequence_number from qgres.consume(%s::text, %s, %s)",
            (queue, consumer, _limit(limit)),
            lambda rows: [NumberedEntry(*_read(row), row[3]) for row in rows],
        )

    @operation
    def add(
        self,
        queue: str,
        *,
        text: str | None = None,
        json: Json | None = None,
        binary: bytes | None = None,
    ) -> Call[None]:
        """Adds an entry to an SR queue. Waits for nobody. The arguments are those of `publish`.

        Raises:
            InvalidArgument: if `json` cannot be written as JSON.
        """
        sql = "select qgres.add(%s::text, %s::bytea, %s::jsonb, %s::text)"
        return Call(sql, (queue, *_parts(text, json, binary)), nothing)

    @operation
    def remove(self, queue: str, *, limit: int | None = None) -> Call[list[Entry]]:
        """Removes entries of an SR queue and returns them; their order is not promised.

        Waits until other transactions that removed from this queue have ended. Process the entries
        in the same `transaction()` block, so that they come again if the block fails.
        """
        return Call(
            'select bytea, jsonb, text from qgres."Remove"(%s::text, %s)',
            (queue, _limit(limit)),
            lambda rows: [Entry(*_read(row)) for row in rows],
        )

    @operation
    def log(self, queue: str) -> Call[str]:
        """Sends each entry of an SP queue to a queue of pgque as well, from now on.

        Returns the name of that queue, `qgres.<name>`, which Spark, Dagster and streams can read.
        """
        return Call("select qgres.log_queue(%s)", (queue,), first)

    @operation
    def unlog(self, queue: str) -> Call[None]:
        """Sends no more entries of an SP queue to the queue that logs it, which stays."""
        return Call("select qgres.unlog_queue(%s)", (queue,), nothing)


class SerialQueues(SerialOperations, Face):
    """The serial queues of a database, as `Client.serial`.

    Example:
        >>> client.serial.create("orders", "SP")
        1
        >>> client.serial.register("orders", "billing")
        >>> client.serial.publish("orders", text="tea")
        1
        >>> with client.transaction():
        ...     for entry in client.serial.consume("orders", "billing", limit=100):
        ...         print(entry.number, entry.text)
        1 tea
    """


class AsyncSerialQueues(SerialOperations, AsyncFace):
    """The serial queues of a database, as `AsyncClient.serial`."""


def _parts(
    text: str | None, json: Json | None, binary: bytes | None
) -> tuple[bytes | None, str | None, str | None]:
    if text is not None and not isinstance(text, str):
        raise InvalidArgument(
            f"text is of the type {type(text).__name__}", "Pass a str, or the value as json=."
        )
    if binary is not None and not isinstance(binary, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"binary is of the type {type(binary).__name__}", "Pass bytes, or a str as text=."
        )
    return binary, None if json is None else json_text(json), text


def _limit(limit: int | None) -> int | None:
    return None if limit is None else checked_count("limit", limit)


def _read(row: Row) -> tuple[bytes | None, Any, str | None]:
    binary = row[0]
    return None if binary is None else bytes(binary), row[1], row[2]
