"""Tables of vectors of each kind, in which attempts store Arrow in this process.

They publish as those of Spark do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType

from pgque_dagster.client.rights import Connection
from pgque_dagster.client.sharded_claim import ShardedClaim
from pgque_dagster.spark import DeltaSink, IcebergSink, PostgresSink
from pgque_dagster.spark.sinks.delta.commit import DeltaOutput
from pgque_dagster.spark.sinks.files.data_files import stored_schema, with_batch_id, write_rows
from pgque_dagster.spark.sinks.iceberg import commit as iceberg_commit
from pgque_dagster.spark.sinks.iceberg.commit import IcebergOutput
from pgque_dagster.spark.sinks.postgres import sink as postgres_sink
from pgque_dagster.spark.sinks.postgres.member_ledger import MemberLedger
from pgque_dagster.spark.sinks.postgres.stage import Stage
from pgque_dagster.spark.sinks.table_output import TableOutput
from tests.support.spark.in_process import Rows, fill_here
from tests.support.spark.stored_tables import iceberg_catalog

SCHEMA = StructType().add("shard", StringType()).add("number", LongType())
ROWS = pa.schema([("shard", pa.string()), ("number", pa.int64())])

At = Callable[[str], None]


class Watched:
    """Tells when the state of the table is read, and when a vector is published."""

    at: At

    def read(self) -> Any:
        found = super().read()  # type: ignore[misc]
        self.at("read")
        return found

    def replace(self, state: Any) -> bool:
        self.at("commit")
        return bool(super().replace(state))  # type: ignore[misc]


class WatchedDelta(Watched, DeltaOutput):
    """For Delta."""


class WatchedIceberg(Watched, IcebergOutput):
    """For Iceberg."""


class WatchedLedger(MemberLedger):
    """The same for PostgreSQL."""

    at: At

    def has(self, connection: Connection, batch: tuple[str, ...]) -> bool:
        found = super().has(connection, batch)
        self.at("read")
        return found

    def record(self, connection: Connection, batch: tuple[str, ...]) -> None:
        self.at("commit")
        super().record(connection, batch)


class Table:
    """A table of vectors.

    Args:
        location: a directory.
        url: a database for what is not in the directory.
    """

    sink: Any

    def __init__(self, location: Path, url: str) -> None:
        self.location, self.url = location, url

    def store(self, vector: ShardedClaim, rows: pa.Table, at: At) -> None:
        """Writes and publishes rows, as the sink does with those of Spark."""
        raise NotImplementedError

    def rows(self) -> list[tuple[str, int]]:
        """All rows, as a program reads them that knows only the format."""
        stored = self.arrow()
        assert stored.num_rows >= 0
        return duckdb.sql("select shard, number from stored order by all").fetchall()

    def arrow(self) -> pa.Table:
        raise NotImplementedError

    def records(self) -> list[Path]:
        """The files that say what failed in vectors."""
        return list(self.location.glob("_pgque/vectors/*"))


class Lake(Table):
    @contextmanager
    def output(self, vector: ShardedClaim) -> Iterator[TableOutput[Any]]:
        raise NotImplementedError

    def store(self, vector: ShardedClaim, rows: pa.Table, at: At) -> None:
        with self.output(vector) as output:
            output.at = at  # type: ignore[attr-defined]
            output.begin()
            output.files = write_rows(
                iter(rows.to_batches()),
                output.storage,
                f"data/{vector.batch_id}-{output.attempt.epoch}-{output.attempt.id}",
                with_batch_id(SCHEMA),
                batch_id=vector.batch_id,
                arrow=output.arrow,
            )
            output.publish()


class Delta(Lake):
    @property
    def sink(self) -> DeltaSink:
        return DeltaSink(self.location)

    @contextmanager
    def output(self, vector: ShardedClaim) -> Iterator[TableOutput[Any]]:
        yield WatchedDelta(self.sink, vector, with_batch_id(SCHEMA), ())

    def arrow(self) -> pa.Table:
        return DeltaTable(self.location).to_pyarrow_table()


class Iceberg(Lake):
    @property
    def sink(self) -> IcebergSink:
        return IcebergSink("a.table", warehouse=self.location, catalog_url=self.url)

    @contextmanager
    def output(self, vector: ShardedClaim) -> Iterator[TableOutput[Any]]:
        session: Any = None
        with self.sink.open(None) as catalog:
            columns = with_batch_id(SCHEMA)
            yield WatchedIceberg(self.sink, "a.table", catalog, vector, columns, session)

    def arrow(self) -> pa.Table:
        return iceberg_catalog(self.url).load_table("a.table").scan().to_arrow()


class Postgres(Table):
    @property
    def sink(self) -> PostgresSink:
        return PostgresSink("numbers", url=self.url)

    def store(self, vector: ShardedClaim, rows: pa.Table, at: At) -> None:
        frame: Any = Rows(rows, SCHEMA)
        batch: Any = SimpleNamespace(claim=vector, spark=None)
        WatchedLedger.at = staticmethod(at)
        self.sink.write(batch, frame)

    def arrow(self) -> pa.Table:
        with psycopg.connect(self.url) as db:
            rows = db.execute("select shard, number from numbers").fetchall()
        return pa.Table.from_pylist([{"shard": x, "number": y} for x, y in rows], schema=ROWS)


KINDS: dict[str, type[Table]] = {"delta": Delta, "iceberg": Iceberg, "postgres": Postgres}


def write_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has sinks write Arrow in this process, and tell their points."""

    def columns(session: None, schema: StructType) -> pa.Schema:
        return stored_schema(ROWS.append(pa.field("batch_id", pa.int64())))

    monkeypatch.setattr(iceberg_commit, "iceberg_columns", columns)
    monkeypatch.setattr(Stage, "fill", fill_here)
    monkeypatch.setattr(postgres_sink, "MemberLedger", WatchedLedger)
