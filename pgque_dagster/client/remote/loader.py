"""The table loader: applies the changes in a queue to tables, in bulk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import psycopg
from psycopg import errors as pg

from ..consumer import Delivery
from ..errors import InvalidArgument, MalformedPayload, TargetRefused, told
from ..models import Message
from ..rights import Connection
from .changes import Change, read_change
from .consumer import RemoteConsumer
from .mover import refuse_tracking
from .tables import KeyWrittenInTwoWays, TableWriter

OnMalformed = Literal["fail", "dead_letter"]
_Numbered = tuple[Delivery, Change]

# What one row may cause, so that the batch is applied again event by event.
_OF_A_ROW = (
    psycopg.DataError,
    psycopg.IntegrityError,
    pg.RaiseException,
    pg.CardinalityViolation,
    # Of a value that is too long for an index.
    pg.ProgramLimitExceeded,
)


class TableLoader(RemoteConsumer):
    """Applies the changes of tables to tables, each batch exactly once and in one transaction.

    It reads what `jsontriga` and `logutriga` publish, or what `change` makes of an event. The
    changes of a batch are merged by key, so each row is written once, by COPY into a temporary
    table and a statement for each table. An insert or update stores the row, whether or not it is
    there. A truncate empties the table.

    Tables need a primary key. The role needs TEMPORARY on the target database, and SELECT, INSERT,
    UPDATE and DELETE on the tables (TRUNCATE, if the source is truncated).

    Args:
        url: the database of the queue.
        queue: the queue's name.
        name: the consumer's name.
        target: the database of the tables; None for the same database.
        tables: the target's table by that of the events, such as `{"public.item": "shop.item"}`,
            or None for a table whose changes are left out. Without it, the names are the same.
        change: reads an event: returns the `Change`, or None to leave the event out.
        on_malformed: what happens to an event that cannot be read, or whose row the target
            refuses: with `fail`, `run` raises, and nothing of the batch is applied or acked; with
            `dead_letter`, it becomes a dead letter. A missing table, column or key always fails.
        **options: those of `RemoteConsumer`, except `tracking`.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        target: str | None = None,
        tables: Mapping[str, str | None] | None = None,
        change: Callable[[Message], Change | None] = read_change,
        on_malformed: OnMalformed = "fail",
        **options: Any,
    ) -> None:
        refuse_tracking(self, options)
        super().__init__(url, queue, name, target=target, **options)
        if on_malformed not in get_args(OnMalformed):
            raise InvalidArgument(
                f"no on_malformed {on_malformed!r}", "Choose fail or dead_letter."
            )
        self._tables = tables
        self._change = change
        self._sets_aside = on_malformed == "dead_letter"

    def prepare_target(self, connection: Connection) -> None:
        """Checks that the tables exist and have primary keys, as far as they are named."""
        writer = TableWriter(connection, self._tables)
        for source, name in (self._tables or {}).items():
            if name is not None:
                writer.find(name, f"to which the changes of {source} are applied")

    def apply_batch(self, messages: Sequence[Delivery], connection: Connection) -> None:
        """Applies the changes of a batch."""
        changes = [(message, self._read(message)) for message in messages]
        found = [(message, change) for message, change in changes if change is not None]
        try:
            with connection.transaction():
                TableWriter(connection, self._tables).write(
                    (message.msg_id, change) for message, change in found
                )
        except (MalformedPayload, KeyWrittenInTwoWays, UnicodeError, *_OF_A_ROW):
            # Which event it was: in their order, changes are applied alone.
            self._apply_in_turn(found, connection)

    def _apply_in_turn(self, changes: Sequence[_Numbered], connection: Connection) -> None:
        writer = TableWriter(connection, self._tables)
        for group in _groups(changes):
            message, change = group[0]
            try:
                with connection.transaction():
                    writer.write((each.msg_id, change) for each, change in group)
            except MalformedPayload as error:
                self._set_aside(message, error)
            except (UnicodeError, *_OF_A_ROW) as error:
                # A text that the encoding of the target lacks is found before it is sent.
                why = str(error)
                if isinstance(error, psycopg.Error):
                    why = error.diag.message_primary or why
                refused = TargetRefused(
                    f"event {message.msg_id} of queue {message.queue}, an {change.operation} of "
                    f"table {change.table}, was refused by database {connection.info.dbname}: "
                    f"{why}; nothing of its batch was applied or acked",
                    "Correct the table, and run the loader again; or pass "
                    'on_malformed="dead_letter" to set such events aside.',
                )
                refused.__cause__ = error
                for each, _ in group:
                    self._set_aside(each, refused)

    def _read(self, message: Delivery) -> Change | None:
        try:
            return self._change(message)
        except Exception as error:
            if isinstance(error, MalformedPayload):
                self._set_aside(message, error)
            else:
                malformed = MalformedPayload(
                    f"event {message.msg_id} cannot be read: {told(error)}",
                    "Correct the function change=, or pass "
                    'on_malformed="dead_letter" to set such events aside.',
                )
                malformed.__cause__ = error
                self._set_aside(message, malformed)
            return None

    def _set_aside(self, message: Delivery, error: MalformedPayload | TargetRefused) -> None:
        """Makes the message a dead letter, or raises the error."""
        if not self._sets_aside:
            raise error
        message.dead_letter(str(error.args[0]))


def _groups(changes: Sequence[_Numbered]) -> list[list[_Numbered]]:
    """Returns each change alone, but truncates that follow each other together.

    One statement may have emptied tables with constraints between them, and only one may again.
    """
    groups: list[list[_Numbered]] = []
    for numbered in changes:
        is_truncate = numbered[1].operation == "truncate"
        if is_truncate and groups and groups[-1][0][1].operation == "truncate":
            groups[-1].append(numbered)
        else:
            groups.append([numbered])
    return groups
