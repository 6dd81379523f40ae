"""Attaches the queue's triggers to tables, and reads the events that they made."""

from dataclasses import dataclass

from tests.support.queues.sql import Connection

TRIGGERS = ["jsontriga", "logutriga", "sqltriga"]


@dataclass(frozen=True)
class Event:
    type: str | None
    data: str | None
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None


def attach(
    db: Connection,
    function: str,
    *arguments: str,
    table: str = "t",
    when: str = "after",
    ops: str = "insert or update or delete",
    name: str = "trg",
    each: str = "row",
    queue: str = "q",
) -> None:
    """Creates the trigger; arguments are those after the queue."""
    literals = ", ".join(_quoted(text) for text in (queue, *arguments))
    db.execute(
        f"create trigger {name} {when} {ops} on {table} for each {each}"
        f" execute function pgque.{function}({literals})".encode()
    )


def events_of(db: Connection, *statements: str) -> list[Event]:
    """What statements published to any queue, and others since the last call on this connection."""
    for statement in statements:
        db.execute(statement.encode())
    found = db.rows(
        "select ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
        f" from {db.event_tables()} where ev_id > coalesce("
        "   nullif(current_setting('test.seen', true), '')::bigint, 0) order by ev_id",
    )
    if found:
        db.execute(f"set test.seen = {found[-1][0]}".encode())
    return [Event(*row[1:]) for row in found]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
