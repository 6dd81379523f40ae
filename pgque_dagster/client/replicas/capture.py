"""Tables that are captured into a queue: their triggers, and requests to copy them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import DatabaseError, InvalidArgument, PermissionDenied, PgqueError
from ..operation import Call, Row, Steps, first, nothing
from ..producing import send_call
from ..queues import check_queue
from ..relay.setup import IS_RELAYED
from ..session import Session
from .deletes import SOFT, Deletes
from .source import SourceTable
from .spec import TableSpec

# The type of an event that requests another copy of a table.
COPY = "copy"
# The beginning of its payload if only one consumer has to copy the table.
REQUEST = '{"consumer":'

# Tables that only this consumer replicated, of a queue that only replicas read.
_LEFT = """
with mine as (select * from pgque.replicas(%s))
select table_name from mine
where consumer_name = %s and left_at is not null and to_regclass(table_name) is not null
  and pgque.replicated_by(queue_name, table_name) is null
  and not exists (select from pgque.get_consumer_info(queue_name) c
                  where c.consumer_name not in (select consumer_name from mine))
"""


@dataclass(frozen=True)
class Captured:
    """The tables that are captured into a queue under one table's name.

    Attributes:
        problem: what is wrong with its triggers.
        senders: how many tables send their changes under this name.
    """

    queue: str
    table: str
    problem: str | None
    senders: int

    def check(self) -> None:
        """Raises `InvalidArgument` if several tables send changes, such as a former partition."""
        if self.senders > 1:
            raise InvalidArgument(
                f"several tables send their changes to queue {self.queue} as {self.table}: "
                f"{self.problem}",
                f"Then {self.table} is copied again.",
            )


def captured_tables(session: Session, queue: str) -> dict[str, Captured]:
    """Returns the tables captured into a queue, by the names in events."""
    return session.run(
        Call(
            "select table_name, string_agg(problem, '; '), count(*) "
            "from pgque.captured_tables(%s) group by 1",
            (queue,),
            lambda rows: {name: Captured(queue, name, *rest) for name, *rest in rows},
        )
    )


def capture_by_name(session: Session, queue: str, table: str, *, append: bool) -> int:
    """Captures a table, or repairs its triggers; a captured table loses nothing.

    Returns:
        How many tables have the triggers.

    Raises:
        PermissionDenied: if the role may not create triggers on the table.
        InvalidArgument: if the table cannot be captured.
    """
    session.run(_check_table(table))
    capturing = Call("select pgque.capture(%s::regclass, %s, %s)", (table, queue, append), first)
    try:
        return int(session.run(capturing))
    except PermissionDenied as error:
        if "needs pgque_writer" in error.hint:
            raise
        raise PermissionDenied(
            str(error.args[0]),
            f"Let the table's owner run: {capture_call(table, queue, append=append)}",
        ) from error


def check_deletes(session: Session, queue: str, deletes: Deletes) -> None:
    """Refuses to keep deleted rows if changes come from the WAL, without their last values."""
    if deletes == SOFT and session.run(Call(IS_RELAYED, (queue,), first)):
        raise InvalidArgument(
            f"deletes is soft, and the changes in queue {queue} come from the WAL, which has only "
            "the keys of deleted rows",
            "Set deletes to hard or history.",
        )


def check_way(session: Session, queue: str, way: str) -> None:
    """Refuses to go on if tables are not captured in the wanted way, triggers or wal."""
    is_relayed = session.run(Call(IS_RELAYED, (queue,), first))
    if is_relayed != (way == "wal"):
        raise InvalidArgument(
            f"capture is {way}, and queue {queue} has {'a' if is_relayed else 'no'} relay",
            f"Set capture to wal, or end the relay: pgque relay {queue} --drop"
            if is_relayed
            else f"Start one, as a service: pgque relay {queue}",
        )


def capture_call(table: str, queue: str, *, append: bool) -> str:
    """Returns the statement with which the owner of a table captures it."""
    return f"select pgque.capture('{table}', '{queue}'{', true' if append else ''});"


def uncapture_by_name(queue: str, table: str) -> Steps[int]:
    """Ends the capture of a table; returns how many tables had the triggers."""
    yield check_queue(queue)
    yield _check_table(table)
    found: int = yield Call("select pgque.uncapture(%s::regclass, %s)", (table, queue), first)
    return found


def uncapture_left(session: Session, queue: str, consumer: str) -> list[str]:
    """Ends the capture of tables that a consumer no longer replicates, if no other one reads it.

    Returns their names.

    Raises:
        PermissionDenied: if the role does not own one of them.
    """
    found = Call(_LEFT, (queue, consumer), lambda rows: [table for (table,) in rows])
    left = session.run(found)
    for table in left:
        try:
            session.run(uncapture_by_name(queue, table))
        except PermissionDenied as error:
            raise PermissionDenied(
                f"{table} was removed from the tables of {consumer}, and is still captured",
                f"Let the table's owner run: select pgque.uncapture('{table}', '{queue}');",
            ) from error
    return left


def _check_table(table: str) -> Call[None]:
    """Raises an error if no table has the name."""

    def parse(rows: list[Row]) -> None:
        if rows[0][0] is None:
            raise InvalidArgument(
                f"database {rows[0][1]} has no table {table}",
                "Create it, or correct its name; a name without a schema is looked up by the "
                "search_path.",
            )

    return Call("select to_regclass(%s), current_database()", (table,), parse)


def capture_new(
    session: Session,
    queue: str,
    tables: Sequence[str | TableSpec],
    check: Callable[[SourceTable], object] = lambda source: None,
) -> dict[str, bool]:
    """Captures the tables that are not captured yet, and requests a copy of each in the next batch.

    `check` raises `InvalidArgument` for a table that cannot be replicated for another reason.

    Returns:
        The name of each table in events, and whether it was captured now.

    Raises:
        InvalidArgument: if a table cannot be replicated. The others are captured anyway.
        PermissionDenied: if the role may not create triggers on a table. The others are captured.
    """
    captured = captured_tables(session, queue)
    is_new: dict[str, bool] = {}
    refused: list[PgqueError] = []
    for table in tables:
        try:
            source = SourceTable.find(session, table)
            check(source)
            if found := captured.get(source.name):
                found.check()
                is_new[source.name] = False
            else:
                with session.transaction():
                    capture_by_name(session, queue, source.name, append=not source.key)
                    request_copy(session, queue, source.name)
                is_new[source.name] = True
        except (InvalidArgument, PermissionDenied, DatabaseError) as error:
            refused.append(error)
    if len(refused) > 1:
        raise InvalidArgument(" ".join(map(str, refused)))
    if refused:
        raise refused[0]
    return is_new


def copy_again(session: Session, queue: str, consumer: str, table: str) -> None:
    """Makes a consumer copy a table again, even if a failing batch is open."""
    forget_copy(session, queue, consumer, table)
    request_copy(session, queue, table, consumer)


def forget_copy(session: Session, queue: str, consumer: str, table: str) -> None:
    """Makes a consumer copy a table with the next batch that it applies to the table."""
    session.run(
        Call("select pgque.forget_replicated(%s, %s, %s)", (queue, consumer, table), nothing)
    )


def request_copy(session: Session, queue: str, table: str, consumer: str | None = None) -> None:
    """Requests a copy of a table, by one consumer or all, whether or not it was copied before."""
    data = "{}" if consumer is None else copy_request(consumer)
    session.run(send_call(queue, data, COPY, table))


def copy_request(consumer: str) -> str:
    """Returns the payload of an event that requests a copy of a table."""
    return REQUEST + json.dumps(consumer) + "}"
