"""A server whose disk is full loses no event, and what docs/runbook.md says makes room."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client import Client
from tests.conftest import new_server
from tests.support.queues.events import make_queue, tick
from tests.support.queues.sql import connect, value
from tests.support.runner.waiting import wait_until
from tests.support.servers.machines import Disk, needs_a_small_disk, small_disk

pytestmark = needs_a_small_disk
_PAYLOADS = [f'"{"x" * 1000}"'] * 1000


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Disk]]:
    """A server, by its URL, and its disk."""
    monkeypatch.setenv("PGQUE_OPEN_FOLDERS", "1")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgque-full-")))
        disk = stack.enter_context(small_disk(folder / "disk", "512m"))
        yield stack.enter_context(new_server(disk.folder)).url, disk


def answers(url: str) -> bool:
    with suppress(psycopg.OperationalError), connect(url) as db:
        db.execute("select 1")
        return True
    return False


def test_no_event_is_lost_on_a_full_disk_and_rotation_makes_room(full: tuple[str, Disk]) -> None:
    url, disk = full
    installer.install(url)
    with Client(url) as client:
        make_queue(client, "orders", "revenue")
        sent = set(client.send_batch("orders", _PAYLOADS))
        tick(client, "orders")
    disk.fill()

    with connect(url) as db, pytest.raises((psycopg.errors.DiskFull, psycopg.OperationalError)):
        for _ in range(1000):
            sent.update(value(db, "select pgque.send_batch('orders', %s::text[])", _PAYLOADS))

    disk.empty()
    wait_until(lambda: answers(url))
    with Client(url) as client:
        tick(client, "orders")
        received: set[int] = set()
        while (batch := client.claim("orders", "revenue", owner="a test")) is not None:
            received |= {event.msg_id for event in batch.events()}
            batch.ack()
        size = table_size(url)
        client.configure_queue("orders", rotation_period="1 ms")
        for _ in range(3):
            client.maint()
            tick(client, "orders")
    assert received == sent
    assert size > 1_000_000
    assert table_size(url) < size / 10


def table_size(url: str) -> int:
    with connect(url) as db:
        query = "select sum(pg_table_size(relid)) from pg_partition_tree('pgque.event')"
        return int(value(db, query))
