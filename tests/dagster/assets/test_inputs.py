"""What a downstream asset gets of an asset that is computed from batches, in each format."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import ParquetBatchIOManager, PgqueResource, SparkBatch
from pgque_dagster.client import InvalidArgument
from tests.dagster.orders import Orders, consuming, error_of, materialized, values
from tests.dagster.support import SessionHolder

Read = list[list[Any]]


@consuming()
def numbers(batch: SparkBatch) -> DataFrame:
    return batch.payload("number bigint not null")


UPSTREAM = numbers.to_source_asset()


def reader(read: Read, name: str = "downstream", **metadata: Any) -> dg.AssetsDefinition:
    """An asset downstream that notes the numbers and batches that it gets."""

    @dg.asset(name=name, ins={"numbers": dg.AssetIn(metadata=metadata)})
    def downstream(numbers: DataFrame) -> None:
        read.append(sorted((row.number, row.batch_id) for row in numbers.collect()))

    return downstream


def test_an_input_is_all_batches_or_those_of_its_own_run(
    orders: Orders, manager: Any, instance: dg.DagsterInstance
) -> None:
    every: Read = []
    of_run: Read = []
    of_own_run = reader(of_run, "of_own_run", **{"pgque/batches": "run"})
    ids = []
    for number in (1, 2, 3):
        orders.publish([{"number": number}])
        result = orders.run(numbers, reader(every), of_own_run, manager=manager, instance=instance)
        for made in map(values, materialized(result, "numbers")):
            assert made["pgque/rows"] == 1
            ids.append(made["pgque/batch_id"])
            if isinstance(manager, ParquetBatchIOManager):
                folder = f"{manager.base_dir}/numbers/batch-{ids[-1]}/publication-1"
                assert made["path"].startswith(f"{folder}/epoch-{made['pgque/epoch']}.")
            else:
                assert made["pgque/table_version"]

    one, two, three = zip((1, 2, 3), ids, strict=True)
    assert every == [[one], [one, two], [one, two, three]]
    assert of_run == [[one], [two], [three]]


def test_a_run_of_the_downstream_asset_alone_is_refused_the_batches_of_a_run(
    orders: Orders, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(orders.spark))
    of_run = reader([], **{"pgque/batches": "run"})
    orders.publish([{"number": 1}])
    assert orders.run(numbers, manager=manager, instance=instance).success

    alone = orders.run(of_run, UPSTREAM, manager=manager, instance=instance, selection=[of_run])

    assert re.search('did not store numbers.*Set pgque/batches to "new"', error_of(alone))


def failing_once_downstream() -> dg.JobDefinition:
    """A job as another process makes it, by what the test has put into its environment."""

    @dg.asset(ins={"numbers": dg.AssetIn(metadata={"pgque/batches": "run"})})
    def downstream(numbers: DataFrame) -> dg.MaterializeResult:
        found = [row.number for row in numbers.collect()]
        if found == [1] and not (Path(os.environ["TEST_LAKE"]) / "failed").exists():
            (Path(os.environ["TEST_LAKE"]) / "failed").touch()
            raise ValueError("boom")
        return dg.MaterializeResult(metadata={"found": found})

    session = SessionHolder(SparkSession.active())
    resources = {
        "pgque": PgqueResource(url=dg.EnvVar("TEST_URL")),
        "pyspark": session,
        "io_manager": ParquetBatchIOManager(base_dir=os.environ["TEST_LAKE"], pyspark=session),
    }
    return dg.Definitions(
        [numbers, downstream],
        jobs=[dg.define_asset_job("both", executor_def=dg.in_process_executor)],
        resources=resources,
    ).resolve_job_def("both")


def test_a_re_executed_run_gets_the_batches_of_the_run_that_failed(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("TEST_URL", orders.client.url)
    job = dg.reconstructable(failing_once_downstream)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        orders.publish([{"number": 1}])
        failed = dg.execute_job(job, instance)
        orders.publish([{"number": 2}])
        assert dg.execute_job(job, instance).success

        options = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        again = dg.execute_job(job, instance, reexecution_options=options)

        assert not failed.success
        assert again.success
        (made,) = again.asset_materializations_for_node("downstream")
        assert made.metadata["found"].value == [1]


def test_an_input_is_read_by_the_session_of_the_resource(orders: Orders, tmp_path: Path) -> None:
    own = orders.spark.newSession()
    read: list[DataFrame] = []

    @dg.asset
    def downstream(numbers: DataFrame) -> None:
        read.append(numbers)

    orders.publish([{"number": 1}])
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(own))

    assert orders.run(numbers, downstream, manager=manager).success
    assert read[0].sparkSession is own


def test_an_input_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    key = dg.AssetKey("numbers")

    with (
        ThreadPoolExecutor(1) as thread_without_session,
        pytest.raises(InvalidArgument, match=r"no Spark session to read numbers.*pyspark="),
    ):
        context = dg.build_input_context(asset_key=key)
        thread_without_session.submit(manager.load_input, context).result()
    metadata = {"pgque/batches": "yesterday"}
    context = dg.build_input_context(asset_key=key, definition_metadata=metadata)
    with pytest.raises(InvalidArgument, match="numbers requests the batches 'yesterday'"):
        manager.load_input(context)


def test_the_data_version_is_that_of_the_batch_and_the_attempt(
    orders: Orders, tmp_path: Path
) -> None:
    orders.publish([{"number": 1}])

    result = orders.run(numbers, manager=ParquetBatchIOManager(base_dir=str(tmp_path)))

    (record,) = materialized(result, "numbers")
    made = values(record)
    parts = (orders.client.incarnation(), made["pgque/batch_id"], made["pgque/epoch"])
    assert (record.tags or {})["dagster/data_version"] == ":".join(map(str, parts))
