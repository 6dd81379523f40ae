"""What a downstream asset gets of an asset that is computed from batches, in each format."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from pgque_dagster import ParquetBatchIOManager, SparkBatch
from pgque_dagster.client import InvalidArgument
from tests.dagster.orders import Orders, consuming, materialized, values
from tests.dagster.support import SessionHolder

Read = list[list[Any]]


@consuming()
def numbers(batch: SparkBatch) -> DataFrame:
    return batch.payload("number bigint not null")


def reader(read: Read, name: str = "downstream", **metadata: Any) -> dg.AssetsDefinition:
    """An asset downstream that notes the numbers and batches that it gets."""

    @dg.asset(name=name, ins={"numbers": dg.AssetIn(metadata=metadata)})
    def downstream(numbers: DataFrame) -> None:
        read.append(sorted((row.number, row.batch_id) for row in numbers.collect()))

    return downstream


def test_an_input_is_all_batches_or_those_of_the_upstream_run(
    orders: Orders, manager: Any, instance: dg.DagsterInstance
) -> None:
    every: Read = []
    of_run: Read = []
    of_last_run = reader(of_run, "of_last_run", **{"pgque/batches": "run"})
    ids = []
    for number in (1, 2, 3):
        orders.publish([{"number": number}])
        result = orders.run(numbers, reader(every), of_last_run, manager=manager, instance=instance)
        for made in map(values, materialized(result, "numbers")):
            assert made["pgque/rows"] == 1
            ids.append(made["pgque/batch_id"])
            if isinstance(manager, ParquetBatchIOManager):
                folder = f"{manager.base_dir}/numbers/batch-{ids[-1]}/publication-1"
                assert made["path"].startswith(f"{folder}/epoch-{made['pgque/epoch']}.")
            else:
                assert made["pgque/table_version"]
    alone = orders.run(
        of_last_run,
        numbers.to_source_asset(),
        manager=manager,
        instance=instance,
        selection=[of_last_run],
    )

    one, two, three = zip((1, 2, 3), ids, strict=True)
    assert alone.success
    assert every == [[one], [one, two], [one, two, three]]
    assert of_run == [[one], [two], [three], [three]]


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
    with pytest.raises(InvalidArgument, match="numbers wants the batches 'yesterday'"):
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
