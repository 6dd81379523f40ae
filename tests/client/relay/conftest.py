"""A database with two queues, one of which gets the changes of its tables from the WAL."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay
from tests.support.queues.sql import Connection, connect, rows

QUEUE, TRIGGERS = "wal", "triggers"


class Source:
    """The database, with a session of it.

    Attributes:
        url: the database.
        db: the session.
    """

    def __init__(self, url: str, db: Connection) -> None:
        self.url, self.db = url, db

    @contextmanager
    def relay(self) -> Iterator[Relay]:
        with Relay.of(self.url, QUEUE) as relay:
            yield relay

    def tick(self) -> int:
        """Moves all changes, and makes a tick."""
        with self.relay() as relay:
            return relay.tick()

    def capture(self, table: str) -> None:
        rows(self.db, f"select pgque.capture('{table}', '{QUEUE}')")

    def events(self, queue: str = QUEUE) -> list[tuple[int, str, str]]:
        """The transaction, type and data of each event."""
        ((number,),) = rows(
            self.db, "select queue_id from pgque.queue where queue_name = %s", queue
        )
        query = "select ev_txid::text::bigint, ev_type, ev_data from pgque.event_{} order by ev_id"
        return rows(self.db, query.format(number))

    def at(self, tick_id: int) -> list[str]:
        """The data of the events that a tick's snapshot sees."""
        query = (
            "select ev_data from pgque.event_1 where pg_visible_in_snapshot(ev_txid,"
            " (select tick_snapshot from pgque.tick where tick_queue = 1 and tick_id = %s))"
            " order by ev_id"
        )
        return [data for (data,) in rows(self.db, query, tick_id)]


@pytest.fixture
def source(database_url: str) -> Iterator[Source]:
    with connect(database_url) as db:
        db.make_queue(QUEUE)
        db.make_queue(TRIGGERS)
        begin_relay(database_url, QUEUE)
        yield Source(database_url, db)
