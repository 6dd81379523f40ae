"""Vectors in tables: attempts die or are overtaken at any point, and each event is stored once.

Attempts write by Arrow in this process, and publish as those of Spark do.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType

from pgque_dagster.client import Batch, Client, InvalidArgument, PgqueError
from pgque_dagster.client.vector import Vector
from pgque_dagster.spark import DeltaSink, ParquetSink
from pgque_dagster.spark.sinks.delta.output import DeltaOutput
from pgque_dagster.spark.sinks.files import folders
from pgque_dagster.spark.sinks.files.data_files import with_batch_id, write_rows
from pgque_dagster.spark.sinks.files.record import check_of_shards
from pgque_dagster.spark.sinks.files.vector_folders import VectorFolder
from tests.conftest import Server, new_database
from tests.support.events import make_queue, publish

SHARDS = ("eu", "us", "asia")
SCHEMA = StructType().add("shard", StringType()).add("number", LongType())
ROWS = pa.schema([("shard", pa.string()), ("number", pa.int64())])
POINTS = ("claimed", "checked", "read", "commit", "committed", "acked")
SEEDS = 100

At = Callable[[str], None]


class Died(Exception):
    """Takes the place of a process's death."""


class Table:
    """A table of vectors.

    Args:
        kind: parquet or delta.
        location: the directory.
    """

    def __init__(self, kind: str, location: Path) -> None:
        self.kind, self.location = kind, location
        self.sink: Any = (ParquetSink if kind == "parquet" else DeltaSink)(location)

    def store(self, vector: Vector, rows: pa.Table, at: At) -> None:
        """Writes and publishes rows, as the sink does with those of Spark."""
        if self.kind == "parquet":
            check_of_shards(self.location)
            folder = Watched(self.location, vector, lambda: None)
            folder.at = at
            folders.store_folder(folder, vector, rows)
            return
        output = WatchedOutput(self.sink, vector, with_batch_id(SCHEMA), ())
        output.at = at
        output.begin()
        output.files = write_rows(
            iter(rows.to_batches()),
            self.sink.storage,
            f"data/{vector.batch_id}-{output.attempt.epoch}-{output.attempt.id}",
            with_batch_id(SCHEMA),
            batch_id=vector.batch_id,
        )
        output.publish()

    def rows(self) -> list[tuple[str, int]]:
        """All rows, as a program reads them that knows only the files."""
        if self.kind == "delta":
            stored = DeltaTable(self.location).to_pyarrow_table()
            source = "stored"
            assert stored.num_rows >= 0
        else:
            source = f"read_parquet('{self.location}/**/*.parquet')"
        return duckdb.sql(f"select shard, number from {source} order by all").fetchall()


class Watched(VectorFolder):
    """Tells when the state is read, and when it is published."""

    at: At

    def read(self) -> folders.FolderState:
        found = super().read()
        self.at("read")
        return found

    def replace(self, state: folders.FolderState) -> bool:
        self.at("commit")
        return super().replace(state)


class WatchedOutput(DeltaOutput):
    """Tells when the state is read, and when it is published."""

    at: At

    def read(self) -> DeltaTable:
        found = super().read()
        self.at("read")
        return found

    def replace(self, state: DeltaTable) -> bool:
        self.at("commit")
        return super().replace(state)


@pytest.fixture(autouse=True)
def _write_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(rows: pa.Table, folder: Path) -> None:
        folder.mkdir()
        pq.write_table(rows, folder / "part-0.parquet")

    monkeypatch.setattr(folders, "write_rows", write)


@pytest.fixture
def clients(
    server: Server, template_database: str, administration: psycopg.Connection
) -> Iterator[dict[str, Client]]:
    """Clients of three databases, each with the queue orders and its consumer revenue."""
    with ExitStack() as stack:
        found = {}
        for shard in SHARDS:
            url = stack.enter_context(new_database(server, template_database, administration))
            found[shard] = stack.enter_context(Client(url))
            make_queue(found[shard])
        yield found


@pytest.fixture(params=["parquet", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path / "table")


def claim(client: Client) -> Batch | None:
    """Claims what is there, after the lease of an earlier attempt."""
    end_lease(client)
    return client.claim("orders", "revenue", owner="a test", ttl=timedelta(minutes=5))


def end_lease(client: Client) -> None:
    """Ends a lease, as if it had run out."""
    lease = client.lease_info("orders", "revenue")
    if lease is not None and lease.is_live:
        with psycopg.connect(client.url, autocommit=True) as db:
            db.execute(
                "select pgque.release_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch)
            )


def attempt(table: Table, clients: dict[str, Client], at: At = lambda point: None) -> None:
    """Consumes a batch of each shard, as a step does."""
    found = {shard: claim(client) for shard, client in clients.items()}
    claims = {shard: batch for shard, batch in found.items() if batch is not None}
    if not claims:
        return
    at("claimed")
    for shard in table.sink.stored(Vector(claims)):
        claims.pop(shard).ack()
        at("acked")
    if not claims:
        return
    at("checked")
    vector = Vector(claims)
    rows: list[tuple[str, int]] = []
    for shard, batch in claims.items():
        for event in batch.events():
            number = json.loads(str(event.payload))
            if number < 0:
                batch.dead_letter([event.msg_id], reason=f"{number}")
            else:
                rows.append((shard, number))
    columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(ROWS)]
    given = pa.Table.from_arrays(columns, schema=ROWS)
    table.store(vector, given, at)
    at("committed")
    for batch in claims.values():
        batch.ack()
        at("acked")
    table.sink.forget(vector)


def left(clients: dict[str, Client]) -> list[str]:
    for client in clients.values():
        end_lease(client)
    return [
        shard
        for shard, client in clients.items()
        if client.next_batch("orders", "revenue") is not None
    ]


def dead(clients: dict[str, Client]) -> list[tuple[str, str | None]]:
    return sorted(
        (shard, letter.reason)
        for shard, client in clients.items()
        for letter in client.dead_letters("orders")
    )


@pytest.mark.parametrize("point", POINTS)
def test_an_attempt_that_dies_is_completed_from_the_record(
    clients: dict[str, Client], table: Table, point: str
) -> None:
    for client in clients.values():
        publish(client, [1, -1])

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with pytest.raises(Died):
        attempt(table, clients, die)
    # Each one alone, as those of runs that failed.
    for shard in SHARDS:
        attempt(table, {shard: clients[shard]})

    assert table.rows() == [(shard, 1) for shard in sorted(SHARDS)]
    assert dead(clients) == [(shard, "-1") for shard in sorted(SHARDS)]
    assert left(clients) == []


@pytest.mark.parametrize("some", [SHARDS, ("us",), ("us", "asia")])
@pytest.mark.parametrize("point", ["claimed", "checked", "read", "commit"])
def test_an_attempt_that_is_overtaken_stores_nothing(
    clients: dict[str, Client], table: Table, point: str, some: tuple[str, ...]
) -> None:
    for client in clients.values():
        publish(client, [1, -1])
    overtaking = [lambda: attempt(table, {shard: clients[shard] for shard in some})]

    def at(reached: str) -> None:
        if reached == point and overtaking:
            overtaking.pop()()

    with pytest.raises(PgqueError):
        attempt(table, clients, at)
    assert table.rows() == [(shard, 1) for shard in sorted(some)]

    attempt(table, clients)
    assert table.rows() == [(shard, 1) for shard in sorted(SHARDS)]
    assert dead(clients) == [(shard, "-1") for shard in sorted(SHARDS)]
    assert left(clients) == []


def test_what_a_stale_attempt_stored_before_a_later_one_is_acked_by_the_next(
    clients: dict[str, Client], table: Table
) -> None:
    """It had renewed its leases before the later one claimed, and commits before that one does."""
    for client in clients.values():
        publish(client, [1])
    two = {shard: clients[shard] for shard in ("eu", "us")}
    claims = {shard: batch for shard, client in two.items() if (batch := claim(client)) is not None}
    stale = Vector(claims)
    renewals: list[None] = []
    stale.renew = lambda: renewals.append(None)  # type: ignore[method-assign]

    def overtaken(reached: str) -> None:
        if reached == "commit":
            rows = pa.Table.from_pylist([{"shard": s, "number": 1} for s in two], schema=ROWS)
            with suppress(InvalidArgument):
                table.store(stale, rows, lambda point: None)

    with pytest.raises(InvalidArgument, match="another run has stored a batch of"):
        attempt(table, {shard: clients[shard] for shard in ("us", "asia")}, overtaken)

    assert renewals
    assert table.rows() == [("eu", 1), ("us", 1)]
    attempt(table, clients)
    assert table.rows() == [("asia", 1), ("eu", 1), ("us", 1)]
    assert left(clients) == []


def test_a_vector_is_written_once(clients: dict[str, Client], table: Table) -> None:
    publish(clients["eu"], [1])
    batch = claim(clients["eu"])
    assert batch is not None
    vector = Vector({"eu": batch})
    rows = pa.Table.from_pylist([{"shard": "eu", "number": 1}], schema=ROWS)
    table.store(vector, rows, lambda point: None)

    with pytest.raises(InvalidArgument):
        table.store(vector, rows, lambda point: None)

    assert table.rows() == [("eu", 1)]


def test_a_record_that_is_gone_is_an_error(clients: dict[str, Client], table: Table) -> None:
    publish(clients["eu"], [1, -1])
    dying = {"committed": Died()}

    def die(reached: str) -> None:
        if error := dying.get(reached):
            raise error

    with pytest.raises(Died):
        attempt(table, clients, die)
    (record,) = (table.location / "_pgque" / "vectors").iterdir()
    record.unlink()

    with pytest.raises(PgqueError, match="cannot be read"):
        attempt(table, clients)
    assert claim(clients["eu"]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_each_event_is_stored_once(
    clients: dict[str, Client], table: Table, seed: int
) -> None:
    """Attempts at any shards die, or are paused while others work, at any point."""
    choose = Random(seed)
    good: list[tuple[str, int]] = []
    bad: list[tuple[str, str | None]] = []

    def send() -> None:
        shard = choose.choice(SHARDS)
        number = len(good) + len(bad) + 1
        sign = choose.choice((1, 1, 1, -1))
        publish(clients[shard], [sign * number])
        if sign > 0:
            good.append((shard, number))
        else:
            bad.append((shard, f"-{number}"))

    def work(depth: int = 0) -> None:
        some = choose.sample(SHARDS, choose.randint(1, len(SHARDS)))

        def at(reached: str) -> None:
            match choose.random():
                case x if x < 0.05:
                    raise Died
                case x if x < 0.2 and depth < 3:
                    choose.choice((send, lambda: work(depth + 1)))()

        with suppress(Died, PgqueError):
            attempt(table, {shard: clients[shard] for shard in some}, at)

    for _ in range(25):
        choose.choice((send, work))()
    while left(clients):
        attempt(table, clients)

    assert table.rows() == sorted(good)
    assert dead(clients) == sorted(bad)
