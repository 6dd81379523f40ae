"""A client reads texts, dates and intervals whatever the encoding and styles of the database."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from psycopg import sql

from pgque_dagster import installer
from pgque_dagster.cli import main
from pgque_dagster.client import AsyncClient, Client, Consumer, MalformedPayload, connection
from pgque_dagster.client.batch import read_plan
from pgque_dagster.spark.reading import arrow
from pgque_dagster.spark.reading.table import query_batches
from pgque_dagster.spark.writing.copying import copy_batches
from tests.client.consumer.support import Queue, run_until
from tests.conftest import Server, administer
from tests.support.queues.sql import connect

LATER = datetime.now(UTC) + timedelta(days=1)


@contextmanager
def encoded_database(server: Server, encoding: str) -> Iterator[str]:
    """A database of an encoding, with the queue q and its consumer c."""
    name = f"t_{encoding.lower()}"
    options = f"encoding '{encoding}' locale 'C' template template0"
    administer(server, f"create database {name} {options}")
    url = server.database_url(name)
    installer.install(url)
    with connect(url) as db:
        db.make_queue()
    yield url
    administer(server, f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def ascii_url(server: Server) -> Iterator[str]:
    """A database that stores bytes of any encoding, with a queue and one event."""
    with encoded_database(server, "SQL_ASCII") as url, connect(url) as db:
        with Client(url) as client:
            client.send("q", {"name": "Zo\u00eb"}, type="order")
        db.tick()
        yield url


@pytest.fixture(
    scope="module",
    params=[("LATIN1", "\u00e9"), ("EUC_JP", "\u65e5\u2460")],
    ids=["latin1", "euc_jp"],
)
def narrow(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[str, str]]:
    """A database whose encoding has few characters, and some of them."""
    with encoded_database(server, request.param[0]) as url:
        yield url, request.param[1]


def test_a_database_of_few_characters_takes_them_by_every_way(
    narrow: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, text = narrow
    db = connect(url)
    with psycopg.connect(url) as given:
        Client(given).send("q", text, type="t")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    events = pa.record_batch({"ev_type": ["t"], "ev_data": [text]})
    sent = CliRunner().invoke(main, ["send", "q", "-", "--text", "--url", url], input=text)
    assert sent.exit_code == 0, sent.stderr
    with Client(url) as client, db:
        client.copy_events("q", [text], type="t")
        with connection.connect(url) as writing:
            table = sql.Identifier(*db.value("select pgque.current_event_table('q')").split("."))
            copy_batches(writing, table, events.schema.names, [events])
        db.tick()
        shown = CliRunner().invoke(main, ["peek", "q", "--url", url])
        assert shown.output.count(text) == 4
        batch = client.claim("q", "c", owner="me")
        assert batch is not None
        assert [message.payload for message in batch.events()] == [text] * 4
        (part,) = read_plan(batch, 1).slices
        (read,) = arrow.read_slice(url, part, ["ev_data"])
        assert read["ev_data"].to_pylist() == [text] * 4
        assert arrow.read_table(url, [part], ["ev_data"])["ev_data"].to_pylist() == [text] * 4
        batch.release()
    consumer = Consumer(url, "q", "c")
    payloads: list[str | None] = []
    consumer.on()(lambda message: payloads.append(message.payload))
    run_until(consumer, lambda: payloads == [text] * 4)


def test_the_encoding_of_a_role_or_database_changes_nothing(q: Queue) -> None:
    q.db.execute(f"alter database {q.db.info.dbname} set client_encoding to latin1".encode())
    with Client(q.url) as client:
        client.send("q", "\u20ac")
    q.tick()
    payloads: list[str | None] = []
    consumer = Consumer(q.url, "q", "c")
    consumer.on()(lambda message: payloads.append(message.payload))
    run_until(consumer, lambda: payloads == ["\u20ac"])


@pytest.mark.parametrize("is_pipeline", [False, True], ids=["plain", "pipeline"])
@pytest.mark.parametrize("kind", ["local", "session"])
def test_an_encoding_set_in_a_transaction_ends_as_its_owner_wants(
    q: Queue, kind: str, is_pipeline: bool
) -> None:
    with psycopg.connect(q.url) as given:
        with given.pipeline() if is_pipeline else nullcontext():
            given.execute(f"set {kind} client_encoding to latin1".encode())
            Client(given).send("q", "\u20ac")
            given.commit()
        assert given.info.parameter_status("client_encoding") == (
            "LATIN1" if kind == "session" else "UTF8"
        )
    assert q.sent() == ["\u20ac"]


def test_a_row_that_is_not_utf8_is_told_with_a_way_to_convert_it(ascii_url: str) -> None:
    def read() -> list[Any]:
        found = query_batches(ascii_url, "public.t", "select name from t", None)
        return [row for batch in found for row in batch.to_pylist()]

    with connect(ascii_url) as db:
        db.execute(r"create table t (name text); insert into t values ('a'), (E'Zo\xeb')")
        refusal = pytest.raises(MalformedPayload, match=r"a row of public\.t cannot be read")
        with refusal as told:
            read()
        (where,) = re.findall("where (name ~ .*?]')", str(told.value))
        (value,) = re.findall("(convert_from.*'UTF8'[)])", str(told.value))
        db.execute(f"update t set name = {value} where {where}".encode())
        assert read() == [{"name": "a"}, {"name": "Zo\u00eb"}]


def test_a_character_that_the_database_lacks_is_named_and_nothing_is_sent(
    narrow: tuple[str, str],
) -> None:
    url, _ = narrow
    lacking = "\u20ac\U0001f600"
    refusal = pytest.raises(MalformedPayload, match=r'"UTF8" has no equivalent.*json.dumps')
    with Client(url) as client, connect(url) as db:
        for send in (client.send, client.send_at, client.send_batch, client.copy_events):
            payload: Any = lacking if send in (client.send, client.send_at) else ["a", lacking]
            with refusal:
                send("q", payload, *[LATER] * (send == client.send_at))
        told = CliRunner().invoke(main, ["send", "q", "-", "--text", "--url", url], input=lacking)
        assert "has no equivalent" in told.stderr
        client.send("q", json.dumps({"a": lacking}))
        db.tick()
        batch = client.claim("q", "c", owner="me")
        assert batch is not None
        assert [message.json() for message in batch.events()] == [{"a": lacking}]


@pytest.mark.parametrize("encoding", ["latin1", "ascii"])
def test_a_command_writes_in_the_terminals_encoding(q: Queue, encoding: str) -> None:
    environment = {**os.environ, "PGQUE_URL": q.url, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "pgque_dagster.cli"]
    payload = '"\u20ac \u00e9 \U0001f600"'
    q.send(payload)

    def shown(*options: str) -> str:
        peek = [*command, "peek", "q", *options]
        done = subprocess.run(peek, env=environment, check=True, capture_output=True)
        assert done.stderr == b""
        return done.stdout.decode("latin1" if encoding == "latin1" else "utf-8")

    euro = "\\u20ac" if encoding == "latin1" else "\u20ac"
    assert f"{euro} \u00e9" in shown()
    assert json.loads(shown("--json"))[0]["payload"] == payload


def test_events_of_any_encoding_are_read_as_text(ascii_url: str) -> None:
    with Client(ascii_url) as client:
        batch = client.claim("q", "c", owner="me")
        assert batch is not None
        (message,) = batch.events()
        batch.release()
    assert (message.type, message.payload) == ("order", '{"name":"Zo\u00eb"}')

    async def read() -> str | None:
        async with AsyncClient(ascii_url) as client:
            again = await client.claim("q", "c", owner="me")
            assert again is not None
            (message,) = await again.events()
            await again.release()
            return message.payload

    assert asyncio.run(read()) == '{"name":"Zo\u00eb"}'
    consumer = Consumer(ascii_url, "q", "c")
    names: list[str] = []
    consumer.on("order")(lambda message: names.append(message.json()["name"]))
    run_until(consumer, lambda: names == ["Zo\u00eb"])

    # Bytes that are not UTF-8 are refused and stay in the queue.
    with psycopg.connect(ascii_url, client_encoding="latin1", autocommit=True) as other:
        other.execute("select pgque.send('q', '\u00e9')")
    with connect(ascii_url) as db:
        db.tick()
    with Client(ascii_url) as client:
        refused = client.claim("q", "c", owner="me")
        assert refused is not None
        with pytest.raises(MalformedPayload, match=r"0xe9\. A stored event holds such bytes"):
            refused.events()
        (part,) = read_plan(refused, 1).slices
        with pytest.raises(MalformedPayload, match="0xe9"):
            list(arrow.read_slice(ascii_url, part, ["ev_data"]))
        assert client.consumers("q")[0].pending_events == 1


STYLES = [
    ("SQL, DMY", "sql_standard"),
    ("German", "iso_8601"),
    ("Postgres, MDY", "postgres_verbose"),
]


@pytest.mark.parametrize(("date_style", "interval_style"), STYLES)
def test_dates_and_intervals_are_read_in_any_style(
    q: Queue, date_style: str, interval_style: str
) -> None:
    q.send("a")
    name = q.db.info.dbname
    q.db.execute(f"alter database {name} set datestyle to {date_style}".encode())
    q.db.execute(f"alter database {name} set intervalstyle to {interval_style}".encode())
    with psycopg.connect(q.url) as other:
        assert other.info.parameter_status("IntervalStyle") == interval_style
    at = datetime(2199, 2, 1, 12, tzinfo=UTC)
    with Client(q.url) as client:
        (stats,) = client.queue_stats()
        (found,) = client.consumers("q")
        assert stats.rotation_age < timedelta(hours=1)
        assert found.lag is not None and found.lag < timedelta(hours=1)
        assert client.health()
        client.send_at("q", "later", at)
        (entry,) = client.list_scheduled("q")
        assert entry.deliver_at == at

        batch = client.claim("q", "c", owner="me", ttl=timedelta(hours=1))
        assert batch is not None
        left = batch.lease.until - datetime.now(UTC)
        assert timedelta(minutes=50) < left < timedelta(minutes=70)
        assert batch.info().lag >= timedelta(0)
        assert [message.payload for message in batch.events()] == ["a"]
        batch.ack()
