"""The people of the acceptance stories, and what each does with the queue in plain SQL.

Each has a connection of their own and the one role that their part needs.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from tests.support.queues import Connection, rows, value

ROLES = {
    "story_operator": "pgque_admin",
    "story_producer": "pgque_writer",
    "story_worker": "pgque_reader",
}


class Message(NamedTuple):
    """A row of pgque.receive, which goes back to pgque.nack as it is."""

    msg_id: int
    batch_id: int
    type: str | None
    payload: str
    retry_count: int | None
    created_at: datetime
    extra1: str | None
    extra2: str | None
    extra3: str | None
    extra4: str | None


def sign_in(url: str, user: str) -> Connection:
    """A connection of one of ROLES; the login is made when it is missing."""
    with psycopg.connect(url, autocommit=True) as db:
        if not value(db, "select count(*) from pg_roles where rolname = %s", user):
            db.execute(f"create role {user} login in role {ROLES[user]}".encode())
    return psycopg.connect(url, user=user, autocommit=True, options="-c lock_timeout=20s")


class Person:
    """Somebody with a connection, who leaves when a test ends."""

    def __init__(self, db: Connection) -> None:
        self.db = db

    def asks(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return rows(self.db, sql, *params)

    def asks_one(self, sql: str, *params: object) -> Any:
        return value(self.db, sql, *params)


class Operator(Person):
    """Runs the queue: pgque_admin."""

    def creates_queue(self, queue: str, **settings: str) -> None:
        self.asks("select pgque.create_queue(%s)", queue)
        for name, setting in settings.items():
            self.asks("select pgque.set_queue_config(%s, %s, %s)", queue, name, setting)

    def ticks(self, queue: str) -> None:
        """Makes what was sent so far a batch, without waiting for the queue's thresholds."""
        self.asks("select pgque.force_next_tick(%s)", queue)
        self.asks("select pgque.ticker()")

    def maintains(self) -> None:
        self.asks("select pgque.maint()")

    def health(self, queue: str) -> dict[str, str]:
        """Status by check."""
        found = self.asks(
            "select check_name, status from pgque.queue_health() where queue_name = %s", queue
        )
        return dict(found)


class Producer(Person):
    """Sends events: pgque_writer."""

    def sends(self, queue: str, *payloads: str) -> None:
        for payload in payloads:
            self.asks("select pgque.send(%s, %s)", queue, payload)

    def sends_at_once(self, queue: str, payloads: Sequence[str]) -> None:
        self.asks("select pgque.send_batch(%s, %s::text[])", queue, payloads)


class Worker(Person):
    """Consumes a queue under one consumer's name: pgque_reader."""

    def __init__(self, db: Connection, queue: str, consumer: str) -> None:
        super().__init__(db)
        self.queue, self.consumer = queue, consumer

    def subscribes(self) -> None:
        self.asks("select pgque.subscribe(%s, %s)", self.queue, self.consumer)

    def receives(self, at_most: int = 100) -> list[Message]:
        """The messages of the open or next batch."""
        sql = "select * from pgque.receive(%s, %s, %s)"
        return [Message(*row) for row in self.asks(sql, self.queue, self.consumer, at_most)]

    def acks(self, message: Message) -> None:
        """Finishes the batch that the message came in."""
        self.asks("select pgque.ack(%s)", message.batch_id)

    def nacks(self, message: Message, reason: str) -> None:
        """Gives the message back, to come again as soon as possible."""
        self.asks(
            "select pgque.nack(%s, %s::pgque.message, '0 seconds', %s)",
            message.batch_id,
            tuple(message),
            reason,
        )

    def works_off(self) -> list[str]:
        """Consumes all that is there; returns the payloads."""
        done: list[str] = []
        while messages := self.receives(1_000_000):
            done += [message.payload for message in messages]
            self.acks(messages[0])
        return done
