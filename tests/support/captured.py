"""What capture made of a table's changes, and what a replica of it has."""

import json
from typing import Any

from tests.support.queues import Connection

# The events of a queue in the order of their ids, as a consumer reads them.
EVENTS = """
select ev_type, ev_data, ev_extra1 from pgque.event
where ev_table / 4 = (select queue_id from pgque.queue where queue_name = %s) order by ev_id
"""


def run(db: Connection, script: str) -> None:
    db.execute(script.encode())


def found(db: Connection, queue: str = "q") -> list[tuple[str, dict[str, Any], str]]:
    return [(kind, json.loads(data), table) for kind, data, table in db.rows(EVENTS, queue)]


def kinds(db: Connection) -> list[str]:
    return [kind for kind, _, _ in found(db)]


def applied(db: Connection, table: str, key: tuple[str, ...] = ("id",)) -> list[dict[str, Any]]:
    """What a replica has that began with an empty table."""
    replica: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, row, name in found(db):
        if name != table:
            continue
        if kind == "truncate":
            replica.clear()
        elif kind == "delete":
            replica.pop(tuple(row[each] for each in key), None)
        else:
            replica[tuple(row[each] for each in key)] = row
    return sorted(replica.values(), key=str)


def table_of(db: Connection, table: str) -> list[dict[str, Any]]:
    stored = db.rows(f"select row_to_json(t)::text from {table} t")
    return sorted((json.loads(row) for (row,) in stored), key=str)


def check(db: Connection, table: str = "public.t", key: tuple[str, ...] = ("id",)) -> None:
    assert applied(db, table, key) == table_of(db, table)
