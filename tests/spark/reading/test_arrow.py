"""How a slice travels: every column as it was stored, and a break is told from the end."""

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

import psycopg
import pyarrow as pa
import pytest

from pgque_dagster.client import Client, ConnectionFailed
from pgque_dagster.client.batch import read_plan
from pgque_dagster.client.models import Slice
from pgque_dagster.spark.reading import arrow
from tests.support.queues.events import claim, publish, tick

Read = Callable[..., list[tuple[object, ...]]]


def send_with_extras(url: str, *extras: str | None) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "select pgque.insert_event('orders', 'typed', 'data', %s, %s, %s, %s)", extras
        )


def stored(url: str, batch_id: int) -> list[tuple[object, ...]]:
    columns = ", ".join(arrow.EVENT_COLUMNS)
    with psycopg.connect(url) as connection:
        return connection.execute(
            f"select {columns} from pgque.get_batch_events(%s)".encode(), (batch_id,)
        ).fetchall()


def by_slices(url: str, slices: Sequence[Slice], columns: Sequence[str]) -> pa.Table:
    batches = [batch for part in slices for batch in arrow.read_slice(url, part, columns)]
    return pa.Table.from_batches(batches)


@pytest.fixture(params=[by_slices, arrow.read_table], ids=["slices", "table"])
def read(request: pytest.FixtureRequest, client: Client) -> Read:
    """Reads some columns of the open batch, in one of the ways there are."""

    def read(columns: Sequence[str] = arrow.EVENT_COLUMNS) -> list[tuple[object, ...]]:
        table = request.param(client.url, read_plan(claim(client), 3).slices, columns)
        assert table.schema == arrow.arrow_schema(columns)
        return [tuple(row.values()) for row in table.to_pylist()]

    return read


def test_all_columns_arrive_as_they_are_stored(client: Client, read: Read) -> None:
    publish(client, ["early"])
    claim(client).ack()
    for extras in (
        (None, None, None, None),
        ("one", None, "three", None),
        (None, "two", None, ""),
        ("one", "two", "three", "four"),
    ):
        send_with_extras(client.url, None, None, None, None)
        send_with_extras(client.url, *extras)
        tick(client)
        batch = claim(client)

        found = read()
        assert sorted(found, key=str) == sorted(stored(client.url, batch.batch_id), key=str)
        assert sorted(read(("ev_extra3",)), key=str) == sorted(
            ((row[8],) for row in found), key=str
        )
        claim(client).ack()


def test_texts_arrive_as_they_are_where_sessions_have_another_encoding(
    client: Client, read: Read
) -> None:
    """Twice: the bytes of `Ã©` in Latin-1 are those of `é` in UTF-8."""
    publish(client, ["Ã©", "é"])
    with psycopg.connect(client.url, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format('alter database %I set client_encoding to latin1',"
            " current_database()); end $$"
        )

    assert sorted(read(("ev_data",))) == [("Ã©",), ("é",)]


def test_an_event_that_is_delivered_again_has_its_count(client: Client, read: Read) -> None:
    (event_id,) = publish(client, ["again"])
    batch = claim(client)
    batch.nack([event_id], retry_after=timedelta(0))
    batch.ack()
    client.maint()
    tick(client)

    assert read(("ev_retry", "ev_id")) == [(1, event_id)]


def test_a_connection_that_breaks_midway_fails_the_read(client: Client) -> None:
    client.send_batch("orders", ["x" * 100_000] * 300)
    tick(client)
    (part,) = read_plan(claim(client), 1).slices
    batches = arrow.read_slice(client.url, part, arrow.EVENT_COLUMNS)
    next(batches)
    with psycopg.connect(client.url) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and state = 'active' and pid <> pg_backend_pid()"
        )

    with pytest.raises(ConnectionFailed, match=f"{socket.gethostname()} lost the connection"):
        list(batches)


def test_an_unreachable_server_is_named_with_the_host_that_tried_and_no_password(
    client: Client,
) -> None:
    publish(client, ["a"])
    slices = read_plan(claim(client), 1).slices

    with pytest.raises(ConnectionFailed) as raised:
        arrow.read_table("postgresql://me:s3cret@127.0.0.1:1/there", slices, ["ev_id"])

    message = str(raised.value)
    assert message.startswith(f"{socket.gethostname()} cannot read events: ")
    assert '"127.0.0.1", port 1' in message
    assert "s3cret" not in message
