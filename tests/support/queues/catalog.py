"""The queue's functions as the catalog has them, each with a call that makes sense.

Tests that go through all functions use this, so that a new one is covered as soon as it is there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.queues.sql import Connection

# Functions that a queue has for itself, made of its number.
GENERATED = re.compile(r"event_\d+_")

QUEUE_ARGUMENTS = re.compile(r"([ix]_)?queue(_name)?")
CONSUMER_ARGUMENTS = re.compile(r"([ix]_)?consumer(_name|_id)?")

_FUNCTIONS = """
select p.proname, p.oid::regprocedure::text, p.prokind = 'p',
       coalesce(p.proargnames, '{}'), a.types,
       array(select g.grantee::regrole::text from aclexplode(p.proacl) g
             where g.grantee not in (0, p.proowner) order by 1)
from pg_proc p
cross join lateral (
    select coalesce(array_agg(n.nspname || '.' || t.typname order by u.nr), '{}') as types
    from unnest(p.proargtypes) with ordinality u (type, nr)
    join pg_type t on t.oid = u.type
    join pg_namespace n on n.oid = t.typnamespace) a
where p.pronamespace = 'pgque'::regnamespace
  and p.prorettype <> 'trigger'::regtype
order by p.proname, 2
"""
_MESSAGE = "pgque.message"
_RECORD = "pg_catalog.record"
_TEXT_TYPES = {"pg_catalog.text", "pg_catalog._text", "pg_catalog.jsonb", "pg_catalog._jsonb"}


@dataclass(frozen=True)
class Argument:
    """One argument that a caller passes; its type with the schema."""

    name: str
    type: str

    @property
    def holds_text(self) -> bool:
        return self.type in {*_TEXT_TYPES, _MESSAGE}

    @property
    def is_row(self) -> bool:
        """Whether it is a row that only our own functions pass."""
        return self.type != _MESSAGE and self.type.startswith((_RECORD, "pgque."))

    def holding(self, text: str) -> object:
        """A value of its type with this text in it."""
        quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if self.type == _MESSAGE:
            return f"(1,1,{quoted},{quoted},,2026-01-01,{quoted},{quoted},{quoted},{quoted})"
        if self.type.startswith("pg_catalog._json"):
            return [quoted]
        if self.type == "pg_catalog.jsonb":
            return "{" + f"{quoted}: {quoted}" + "}"
        return [text] if self.type == "pg_catalog._text" else text


@dataclass(frozen=True)
class Function:
    """A function or procedure that can be called, so no trigger function."""

    name: str
    signature: str
    is_procedure: bool
    arguments: tuple[Argument, ...]
    granted: tuple[str, ...]
    """The roles that were given it."""

    @cached_property
    def statement(self) -> bytes:
        """A call in which every name has its schema."""
        arguments = ", ".join(f"%s::{each.type}" for each in self.arguments)
        verb = "call" if self.is_procedure else "select * from"
        return f"{verb} pgque.{self.name}({arguments})".encode()

    def call(self, db: Connection, values: Mapping[str, object]) -> None:
        """Calls it with values by argument name, or else by type, or else null."""
        given = [
            None if each.is_row else values.get(each.name, values.get(each.type))
            for each in self.arguments
        ]
        db.execute(self.statement, given or None)


def functions(db: Connection) -> list[Function]:
    """All of the schema, those of the queues themselves included."""
    return [
        Function(name, signature, is_procedure, _arguments(names, types), tuple(granted))
        for name, signature, is_procedure, names, types, granted in db.rows(_FUNCTIONS)
    ]


def public_functions(db: Connection) -> list[Function]:
    """Those that a role was given."""
    return [function for function in functions(db) if function.granted]


def _arguments(names: list[str], types: list[str]) -> tuple[Argument, ...]:
    return tuple(map(Argument, names, types))


def populate(db: Connection) -> None:
    """A queue q with one of everything: see `sample_values`."""
    db.make_queue("q", consumers=("c", "leased", "gone"), max_retries="1")
    db.value("select pgque.register_subconsumer('q', 'shared', 'w')")
    db.value("select pgque.subscribe_slot('q', 'parted', 0, 2)::text")
    ids = db.send("1", "2", "3", "4")
    db.tick()
    for consumer in ("gone", "c"):
        batch = db.value("select pgque.next_batch('q', %s)", consumer)
        db.value("select pgque.dead_letter_batch(%s, %s, 'torn')", batch, ids[:2])
        db.value("select pgque.nack_batch(%s, %s, '0')", batch, ids[2:3])
        db.value("select pgque.finish_batch(%s)", batch)
    db.value("select pgque.unregister_consumer('q', 'gone', true)")
    db.send("5")
    db.tick()
    db.value("select pgque.next_batch('q', 'c')")
    db.value("select batch_id from pgque.claim_batch('q', 'leased', 'me', '1 day')")
    db.value("select pgque.claim_slot('q', 'parted', 0, 'me', '1 day')")
    db.rows("select * from pgque.receive_partitioned('q', 'parted', 0, 2, 'me')")


def sample_values(db: Connection, function: Function) -> dict[str, Any]:
    """Arguments with which a call of this function finds what it works on, after `populate`."""
    names = {argument.name for argument in function.arguments}
    consumer = "c"
    if "i_epoch" in names:
        consumer = "leased"
    if "i_subconsumer" in names:
        consumer = "shared"
    is_of_a_slot = Argument("i_slot", "pg_catalog.int4") in function.arguments
    if is_of_a_slot or "i_on_failure" in names:
        consumer = "parted"
    ((batch, epoch),) = db.rows(
        "select s.sub_batch, s.lease_epoch from pgque.subscription s"
        " join pgque.consumer c on c.co_id = s.sub_consumer where c.co_name = %s",
        consumer if consumer != "parted" else "parted#0/2",
    )
    event = db.value("select max(ev_id) from pgque.event_1")
    letter = db.value("select max(dl_id) from pgque.dead_letter")
    by_name = {name: "q" for name in names if QUEUE_ARGUMENTS.fullmatch(name)}
    by_name |= {name: consumer for name in names if CONSUMER_ARGUMENTS.fullmatch(name)}
    return {
        **TYPED_VALUES,
        **_BY_NAME,
        **by_name,
        _MESSAGE: f"({event},{batch},t,5,,2026-01-01,,,,)",
        "i_batch_id": batch,
        "x_batch_id": batch,
        "i_msg_ids": [event],
        "i_event_id": event,
        "x_event_id": event,
        "i_epoch": epoch,
        "i_slot": 0 if is_of_a_slot else "0",
        "i_table": "pgque.event_1_0" if "i_filenode" in names else 1259,
        "i_dead_letter_id": letter,
    }


# A value for each type, whatever the argument means.
TYPED_VALUES: dict[str, Any] = {
    "pg_catalog.bool": True,
    "pg_catalog.int2": 1,
    "pg_catalog.int4": 1,
    "pg_catalog.int8": 1,
    "pg_catalog.xid": "1",
    "pg_catalog.xid8": "1",
    "pg_catalog._xid8": ["1"],
    "pg_catalog.pg_snapshot": "1:1:",
    "pg_catalog.oid": 1,
    "pg_catalog.interval": "1 hour",
    "pg_catalog.timestamptz": "2100-01-01 00:00+00",
    "pg_catalog.text": "x",
    "pg_catalog.jsonb": "{}",
    "pg_catalog._text": ["x"],
    "pg_catalog._jsonb": ["{}"],
    "pg_catalog._int4": [1],
    "pg_catalog._int8": [1],
    "pg_catalog._bool": [True],
    "pg_catalog._oid": [25],
}
_BY_NAME: dict[str, Any] = {
    "i_from_fingerprint": None,
    "i_to_fingerprint": None,
    "i_subconsumer": "w",
    "i_owner": "me",
    "i_worker": "me",
    "x_param_name": "max_retries",
    "x_param_value": "3",
    "i_seq_name": "pgque.event_1_id_seq",
    "i_new_value": 1000,
    "p_period_ms": 100,
    "x_retry_time": "2026-01-01 00:00+00",
    "i_since": "2026-01-01 00:00+00",
    "i_extra_where": "true",
    "i_expressions": None,
    "i_reason": None,
    "i_start_at": "latest",
    "i_position": "latest",
    "i_type": None,
    "i_row": "(1,x)",
    "i_n": 2,
    "i_on_failure": "pause",
    "payloads": "{1}",
}
