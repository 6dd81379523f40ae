"""Reads the changes of tables that jsontriga and logutriga publish: docs/triggers.md.

Values stay as PostgreSQL prints them, because only PostgreSQL reads them again. The package `spark`
reads the same formats into typed columns, with libraries that the client does without.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import unquote_plus

from ..errors import InvalidArgument, MalformedPayload
from ..models import Message

Operation = Literal["insert", "update", "delete", "truncate"]

_LETTERS: dict[str, Operation] = {"I": "insert", "U": "update", "D": "delete", "R": "truncate"}


@dataclass(frozen=True)
class Change:
    """A change of a row, for `TableLoader`.

    Attributes:
        table: the table, as `schema.name`.
        operation: `insert` and `update` both store the row, whether it was there or not.
        row: the values by column; of a delete, the columns of the primary key are enough. A dict
            is written as JSON, and so is a list for a column of JSON; text is read by PostgreSQL.
        key: the columns that identify the row at the source; None if they are the primary key of
            the target table.
    """

    table: str
    operation: Operation
    row: Mapping[str, Any]
    key: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Checks the operation.

        Raises:
            InvalidArgument: if there is no such operation.
        """
        if self.operation not in get_args(Operation):
            raise InvalidArgument(
                f"no operation {self.operation!r}", f"Choose {', '.join(get_args(Operation))}."
            )


def read_change(message: Message) -> Change:
    """Reads an event of jsontriga or logutriga.

    Raises:
        MalformedPayload: if it is none, or its row cannot be read.
    """
    try:
        if (message.type or "").startswith("{"):
            return _from_json(message)
        return _from_url(message)
    except MalformedPayload:
        raise
    except InvalidArgument as error:
        raise _malformed(message, str(error.args[0])) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(message, f"{type(error).__name__}: {error}") from error


def _from_json(message: Message) -> Change:
    head = json.loads(message.type or "")
    schema, table = head["table"]
    row = json.loads(message.payload or "", parse_float=str)
    if not isinstance(row, dict):
        raise _malformed(message, "its row is no JSON object")
    operation = str(head["op"]).lower()
    values = {name: _printed(value) for name, value in row.items()}
    return Change(f"{schema}.{table}", operation, values, tuple(head["pkey"]))  # type: ignore[arg-type]


def _from_url(message: Message) -> Change:
    letter, _, key = (message.type or "").partition(":")
    if letter not in _LETTERS or not message.extra1:
        raise _malformed(message, f"its type is {message.type!r}")
    row: dict[str, str | None] = {}
    for pair in (message.payload or "").split("&") if message.payload else []:
        name, is_value, text = pair.partition("=")
        row[_unquoted(name)] = _unquoted(text) if is_value else None
    return Change(message.extra1, _LETTERS[letter], row, tuple(key.split(",")) if key else ())


def _unquoted(text: str) -> str:
    return unquote_plus(text, errors="strict")


def _printed(value: object) -> str | None:
    """Returns a value as PostgreSQL prints that of the column."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"a {type(value).__name__} where jsontriga writes text")


def _malformed(message: Message, why: str) -> MalformedPayload:
    return MalformedPayload(
        f"event {message.msg_id} is not of jsontriga or logutriga: {why}",
        "Load another queue, pass change= with a function that reads the event, or "
        'on_malformed="dead_letter" to set such events aside.',
    )
