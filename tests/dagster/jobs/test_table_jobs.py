"""The jobs that maintain Delta and Iceberg tables."""

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pgque_dagster import (
    PgqueResource,
    build_delta_maintenance_job,
    build_iceberg_maintenance_job,
)
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import IcebergSink
from tests.support.attempts import next_batch


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table of five small files."""
    location = str(tmp_path / "table")
    for number in range(5):
        write_deltalake(location, pa.table({"number": [number]}), mode="append")
    return location


def test_small_files_are_united(location: str) -> None:
    job = build_delta_maintenance_job([location])

    assert job.execute_in_process().success

    assert len(DeltaTable(location).file_uris()) == 1
    numbers = DeltaTable(location).to_pyarrow_table()["number"].to_pylist()
    assert sorted(numbers) == list(range(5))


def test_a_dry_run_changes_nothing(location: str) -> None:
    job = build_delta_maintenance_job([location])
    config = {"ops": {"pgque_maintain_delta_tables_op": {"config": {"dry_run": True}}}}

    assert job.execute_in_process(run_config=config).success

    assert len(DeltaTable(location).file_uris()) == 5


def test_a_retention_that_may_delete_files_of_running_attempts_is_refused(location: str) -> None:
    job = build_delta_maintenance_job([location])
    config = {"ops": {"pgque_maintain_delta_tables_op": {"config": {"retention_days": 0.5}}}}

    assert not job.execute_in_process(run_config=config, raise_on_error=False).success

    assert len(DeltaTable(location).file_uris()) == 5


@pytest.mark.parametrize(
    ("config", "is_left"),
    [({}, False), ({"dry_run": True}, True), ({"retention_days": 100_000}, True)],
)
def test_files_of_dead_attempts_at_an_iceberg_table_are_removed(
    client: Client, spark: SparkSession, tmp_path: Path, config: dict[str, Any], is_left: bool
) -> None:
    sink = IcebergSink("sales.revenue", warehouse=tmp_path)
    batch = next_batch(client, spark, [{"number": 1}])
    sink.write(batch, batch.payload("number bigint"))
    batch.claim.ack()
    attempt = f"{batch.batch_id}-0-{uuid.uuid4().hex}"
    (table,) = tmp_path.glob("sales/revenue-*")
    left = table / "data" / attempt / f"part-{uuid.uuid4().hex}.parquet"
    left.parent.mkdir()
    left.touch()
    os.utime(left, (0, 0))
    job = build_iceberg_maintenance_job([sink])

    result = job.execute_in_process(
        run_config={"ops": {"pgque_maintain_iceberg_tables_op": {"config": config}}},
        resources={"pgque": PgqueResource(url=client.url)},
    )

    assert result.success
    assert left.exists() == is_left
    assert [row.number for row in sink.read(spark, client.url).collect()] == [1]


def test_one_location_is_refused_where_a_list_is_expected() -> None:
    with pytest.raises(InvalidArgument, match="no list of locations") as raised:
        build_delta_maintenance_job("s3://bucket/table")
    assert "['s3://bucket/table']" in (raised.value.hint or "")
