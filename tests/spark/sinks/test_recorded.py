"""What earlier code stored and did not ack is continued, as are events sent to release 0.3.0.

`tests/recorded` has tables as commit 5d30088d of version 0.4.0 wrote them: `recording.py` ran with
that code. Each test has a database with the events and the incarnation of that claim, in which the
release opened the batch, and which is upgraded.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.sharded_claim import ShardedClaim
from pgque_dagster.client.window import Window
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink, PostgresSink, SparkBatch
from pgque_dagster.spark.sharded_batch import ShardedBatch
from tests.conftest import NewDatabase, Server, install
from tests.programs.recording import CASES, fill, set_times
from tests.support.queues.sql import connect
from tests.support.servers.databases import empty_database
from tests.support.servers.released import RELEASES
from tests.support.spark.stored_tables import iceberg_catalog

RECORDED = Path(__file__).parents[2] / "recorded"
HOUR, MIDNIGHT = timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Recording:
    """A recorded table, a database for what is not in its folder, and clients of its queues."""

    kind: str
    case: str
    folder: Path
    marks: dict[str, Any]
    url: str
    clients: dict[str, Client]
    spark: SparkSession

    @property
    def sink(self) -> Any:
        match self.kind:
            case "delta":
                return DeltaSink(self.folder / "revenue")
            case "iceberg":
                return IcebergSink("pgque.revenue", warehouse=self.folder, catalog_url=self.url)
            case "parquet":
                return ParquetSink(self.folder / "revenue")
        name = "revenue" if self.case == "vector" else None
        return PostgresSink("revenue", url=self.url, name=name)

    def attempt(self, hour: int = 0, epoch: int | None = None) -> SparkBatch:
        """Claims the next batch, or the window of an hour, which gets any epoch."""
        start, batches = MIDNIGHT + hour * HOUR, {}
        for shard, client in self.clients.items():
            claim: Any
            if self.case.endswith("window"):
                claim = Window(client, "orders", start, start + HOUR)
                claim.lease = replace(claim.lease, epoch=epoch or claim.lease.epoch)
            else:
                claim = client.claim("orders", "revenue", owner="a test")
            batches[shard] = SparkBatch(self.spark, claim, client.url)
        if "pgque" in batches:
            return batches["pgque"]
        claims = {shard: batch.claim for shard, batch in batches.items()}
        return ShardedBatch(ShardedClaim(claims), batches)

    def write(self, batch: SparkBatch) -> None:
        rows = batch.payload("number bigint").withColumn("writer", f.lit("later"))
        self.sink.write(batch, rows)

    def rows(self) -> list[tuple[int, str]]:
        """All rows, as a program reads them that knows only the format."""
        match self.kind:
            case "delta":
                stored: Any = DeltaTable(self.folder / "revenue").to_pyarrow_table()
            case "iceberg":
                stored = iceberg_catalog(self.url).load_table("pgque.revenue").scan().to_arrow()
            case "parquet":
                stored = duckdb.read_parquet(f"{self.folder}/revenue/**/*.parquet")
            case _:
                with connect(self.url) as db:
                    return sorted(db.rows("select number, writer from revenue"))
        assert stored is not None
        return duckdb.sql("select number, writer from stored order by all").fetchall()

    def restore(self) -> None:
        """Makes the table, if its files are not in the folder."""
        if self.kind == "postgres":
            with connect(self.url) as db:
                db.execute((self.folder / "target.sql").read_bytes())
        elif self.kind == "iceberg":
            rows, snapshot = pa.Table.from_pylist(self.marks["rows"]), self.marks["snapshot"]
            marks = {name: snapshot[name] for name in snapshot if name.startswith("pgque.")}
            with self.sink.open(None) as catalog:
                catalog.create_namespace("pgque")
                made = {"location": f"{self.folder}/made", "properties": self.marks["properties"]}
                table = catalog.create_table("pgque.revenue", rows.schema, **made)
                table.append(rows, snapshot_properties=marks)


def fill_and_upgrade(url: str) -> None:
    """Fills a database as a release, and upgrades it."""
    fill(url, RELEASES[0].sql())
    install(url)
    set_times(url)


@pytest.fixture
def recording(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    server: Server,
    new_database: NewDatabase,
    spark: SparkSession,
) -> Iterator[Recording]:
    kind, case = request.param
    folder = shutil.copytree(RECORDED / f"{kind}-{case}", tmp_path / "recorded")
    marks = json.loads((folder / "marks.json").read_text())
    with ExitStack() as stack:
        clients = {}
        for shard, incarnation in marks["incarnations"].items():
            url = stack.enter_context(new_database(fill_and_upgrade))
            with connect(url) as db:
                db.execute(
                    "create or replace function pgque.incarnation() returns uuid"
                    f" language sql as $$ select uuid '{incarnation}' $$".encode()
                )
            clients[shard] = stack.enter_context(Client(url))
        url = stack.enter_context(empty_database(server))
        found = Recording(kind, case, folder, marks, url, clients, spark)
        found.restore()
        yield found


def recordings(*kinds: str, cases: tuple[str, ...]) -> pytest.MarkDecorator:
    found = [
        pytest.param(
            (kind, case),
            id=f"{kind}-{case}",
            # A window has the same name in each format.
            marks=pytest.mark.slow if case == "window" and kind != "delta" else (),
        )
        for kind in kinds
        for case in CASES[kind]
        if case in cases
    ]
    return pytest.mark.parametrize("recording", found, indirect=True)


@pytest.mark.each_format
@recordings("delta", "iceberg", "parquet", cases=("batch", "window", "sharded-window"))
def test_a_later_attempt_replaces_what_is_recorded(recording: Recording) -> None:
    recorded, epoch = recording.rows(), recording.marks["epoch"]
    assert {writer for _, writer in recorded} == {"recorded"}
    same: Any = recording.attempt(epoch=epoch)
    assert same.batch_id == recording.marks["batch_id"]

    with pytest.raises(InvalidArgument, match=f"epoch {epoch} of batch .* is published"):
        recording.write(same)

    assert recording.rows() == recorded
    if recording.case == "batch":
        same.claim.release()
    later: Any = recording.attempt(epoch=epoch + 1)
    recording.write(later)
    replaced = [(number, "later") for number, _ in recorded]
    assert recording.rows() == replaced
    if recording.case == "batch":
        later.claim.ack()
    recording.write(recording.attempt(hour=1))
    assert recording.rows() == [*replaced, *[(3, "later")] * len(recording.clients)]


@pytest.mark.each_format
@recordings("delta", "iceberg", "postgres", cases=("vector",))
def test_a_recorded_vector_is_acked_with_its_dead_letters(recording: Recording) -> None:
    vector, batch = recording.marks["batch_id"], recording.attempt()
    claims: Any = batch.claim.members
    assert recording.sink.stored(batch.claim) == dict.fromkeys(claims, vector)

    for shard, claim in claims.items():
        claim.ack()
        recording.sink.forget(claim, vector)
        assert [x.reason for x in recording.clients[shard].dead_letters("orders")] == ["recorded"]

    recording.write(recording.attempt())
    assert recording.rows() == [(1, "recorded"), (1, "recorded"), (3, "later"), (3, "later")]


@recordings("postgres", cases=("batch",))
def test_a_batch_in_the_recorded_ledger_is_not_applied_again(recording: Recording) -> None:
    batch: Any = recording.attempt()

    recording.write(batch)

    assert recording.rows() == [(1, "recorded"), (2, "recorded")]
    batch.claim.ack()
    recording.write(recording.attempt())
    assert recording.rows() == [(1, "recorded"), (2, "recorded"), (3, "later")]
