"""Writes what Spark's tasks would write, in this process: where tasks are not the subject."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pgque_dagster.client.connection import connect
from pgque_dagster.spark.address import DatabaseAddress
from pgque_dagster.spark.sinks import table_output
from pgque_dagster.spark.sinks.files.data_files import (
    DataFile,
    check_columns,
    with_batch_id,
    write_rows,
)
from pgque_dagster.spark.sinks.files.storage import Storage
from pgque_dagster.spark.sinks.postgres.stage import Stage
from pgque_dagster.spark.writing.copying import copy_batches


@dataclass
class Rows:
    """Rows in place of a DataFrame."""

    rows: pa.Table
    schema: StructType

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.rows


@contextmanager
def without_tasks() -> Iterator[None]:
    """Has tables of the lake and of PostgreSQL filled by this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_output, "write_files", write_here)
        patch.setattr(Stage, "fill", fill_here)
        yield


def write_here(
    frame: Any, storage: Storage, folder: str, *, batch_id: int, arrow: pa.Schema | None
) -> list[DataFile]:
    """As `write_files`."""
    schema = with_batch_id(frame.schema)
    check_columns(schema)
    rows = iter(frame.toArrow().to_batches())
    return write_rows(rows, storage, folder, schema, batch_id=batch_id, arrow=arrow)


def fill_here(stage: Any, address: DatabaseAddress, frame: Any) -> None:
    """As `Stage.fill`."""
    with connect(address.resolve()) as connection:
        batches = iter(frame.toArrow().to_batches())
        txid, count = copy_batches(connection, stage._table, stage._merge.names, batches)
    stage._txids, stage._rows = [txid], count
