"""The jobs that maintain Delta and Iceberg tables."""

import os
import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, build_delta_maintenance_job, build_iceberg_maintenance_job
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import IcebergSink
from tests.support.attempts import next_batch


def run(job: dg.JobDefinition, **config: Any) -> bool:
    ops = {"ops": {f"{job.name}_op": {"config": config}}}
    return job.execute_in_process(run_config=ops, raise_on_error=False).success


def test_small_files_of_a_delta_table_are_united(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    for number in range(5):
        write_deltalake(location, pa.table({"number": [number]}), mode="append")
    job = build_delta_maintenance_job([location])

    # Half a day may delete files of running attempts.
    assert not run(job, retention_days=0.5)
    assert run(job, dry_run=True)
    assert len(DeltaTable(location).file_uris()) == 5
    assert run(job)
    assert len(DeltaTable(location).file_uris()) == 1
    numbers = DeltaTable(location).to_pyarrow_table()["number"].to_pylist()
    assert sorted(numbers) == list(range(5))


def test_files_of_dead_attempts_at_an_iceberg_table_are_removed(
    client: Client, spark: SparkSession, tmp_path: Path
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
    job = dg.Definitions(
        jobs=[build_iceberg_maintenance_job([sink])],
        resources={"pgque": PgqueResource(url=client.url)},
    ).resolve_job_def("pgque_maintain_iceberg_tables")

    assert run(job, dry_run=True) and run(job, retention_days=100_000)
    assert left.exists()
    assert run(job)
    assert not left.exists()
    assert [row.number for row in sink.read(spark, client.url).collect()] == [1]


def test_one_location_is_refused_where_a_list_is_expected() -> None:
    with pytest.raises(InvalidArgument, match="no list of locations") as raised:
        build_delta_maintenance_job("s3://bucket/table")
    assert "['s3://bucket/table']" in (raised.value.hint or "")
