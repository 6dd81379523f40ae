"""The jobs that maintain tables of files."""

import os
import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, build_table_maintenance_job
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink
from tests.dagster.support import SessionHolder
from tests.support.spark.attempts import next_batch


def maintain(
    spark: SparkSession, *tables: DeltaSink | IcebergSink, url: str, **config: Any
) -> bool:
    job = dg.Definitions(
        jobs=[build_table_maintenance_job(tables)],
        resources={"pgque": PgqueResource(url=url), "pyspark": SessionHolder(spark)},
    ).resolve_job_def("pgque_maintain_tables")
    ops = {"ops": {f"{job.name}_op": {"config": config}}}
    return job.execute_in_process(run_config=ops, raise_on_error=False).success


def test_small_files_of_a_delta_table_are_united(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    for number in range(5):
        write_deltalake(location, pa.table({"number": [number]}), mode="append")
    sink = DeltaSink(location)

    # Half a day may delete files of running attempts.
    assert not maintain(spark, sink, url=client.url, retention_days=0.5)
    assert maintain(spark, sink, url=client.url)
    assert len(DeltaTable(location).file_uris()) == 1
    numbers = DeltaTable(location).to_pyarrow_table()["number"].to_pylist()
    assert sorted(numbers) == list(range(5))


def test_a_table_whose_files_are_gone_keeps_no_other_from_maintenance(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    broken, small = (DeltaSink(str(tmp_path / name)) for name in ("broken", "small"))
    for sink in (broken, small):
        for number in range(5):
            write_deltalake(sink.location, pa.table({"number": [number]}), mode="append")
    for path in (tmp_path / "broken").glob("*.parquet"):
        path.unlink()
    assert not maintain(spark, broken, small, url=client.url)
    assert len(DeltaTable(small.location).file_uris()) == 1


def test_files_of_an_iceberg_table_are_united_and_those_of_dead_attempts_removed(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    sink = IcebergSink("sales.revenue", warehouse=tmp_path)
    for number in (1, 2):
        batch = next_batch(client, spark, [{"number": number}])
        sink.write(batch, batch.payload("number bigint"))
        batch.claim.ack()
    attempt = f"{batch.batch_id}-0-{uuid.uuid4().hex}"
    (table,) = tmp_path.glob("sales/revenue-*")
    left = table / "data" / attempt / f"part-{uuid.uuid4().hex}.parquet"
    left.parent.mkdir()
    left.touch()
    os.utime(left, (0, 0))
    assert maintain(spark, sink, url=client.url, retention_days=100_000)
    assert left.exists()
    assert maintain(spark, sink, url=client.url)
    assert not left.exists()
    read = sink.read(spark, client.url)
    assert sorted(row.number for row in read.collect()) == [1, 2]
    assert len(read.inputFiles()) == 1


def test_a_directory_of_parquet_is_refused(tmp_path: Path) -> None:
    tables: Any = [ParquetSink(tmp_path / "table")]
    with pytest.raises(InvalidArgument, match="ParquetSink needs no maintenance"):
        build_table_maintenance_job(tables)
