"""What a downstream asset gets of an asset that is computed from batches."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import ParquetBatchIOManager, SparkBatch, pgque_asset
from pgque_dagster.client import Client, InvalidArgument
from tests.dagster.support import SessionHolder, materialize
from tests.support.events import make_queue, publish


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        make_queue(client)
        yield client


@pgque_asset(queue="orders", consumer="revenue", max_batches=2)
def numbers(batch: SparkBatch) -> DataFrame:
    return batch.payload("number bigint not null")


def reader(read: list[Any], metadata: dict[str, Any] | None = None) -> dg.AssetsDefinition:
    """An asset downstream that notes what it gets."""

    @dg.asset(ins={"numbers": dg.AssetIn(metadata=metadata or {})})
    def downstream(numbers: DataFrame) -> None:
        read.append(numbers)

    return downstream


def publish_batches(client: Client, *numbers: int) -> None:
    for number in numbers:
        publish(client, [{"number": number}])


def values(frame: DataFrame) -> list[int]:
    return sorted(row.number for row in frame.collect())


def test_an_input_is_read_by_the_session_of_the_resource(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish_batches(client, 1)
    own = spark.newSession()
    read: list[DataFrame] = []
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(own))

    result = materialize(numbers, client.url, spark, io_manager=manager, others=(reader(read),))

    assert result.success
    assert read[0].sparkSession is own
    assert values(read[0]) == [1]


def test_an_input_without_a_session_says_what_to_pass(tmp_path: Path) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    context = dg.build_input_context(asset_key=dg.AssetKey("numbers"))

    with (
        ThreadPoolExecutor(1) as thread_without_session,
        pytest.raises(InvalidArgument, match=r"no Spark session to read numbers.*pyspark="),
    ):
        thread_without_session.submit(manager.load_input, context).result()


@pytest.mark.usefixtures("one_event_a_batch")
def test_an_input_gets_the_batches_that_the_upstream_run_stored(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(spark))
    read: list[DataFrame] = []
    downstream = reader(read, {"pgque/batches": "run"})
    with dg.DagsterInstance.ephemeral() as instance:
        publish_batches(client, 1)
        materialize(numbers, client.url, spark, io_manager=manager, instance=instance)
        publish_batches(client, 2, 3)
        materialize(
            numbers,
            client.url,
            spark,
            io_manager=manager,
            instance=instance,
            others=(downstream,),
        )
        alone = dg.materialize(
            [downstream, numbers.to_source_asset()],
            selection=[downstream],
            resources={"io_manager": manager},
            instance=instance,
        )

    assert alone.success
    assert [values(frame) for frame in read] == [[2, 3], [2, 3]]


@pytest.mark.usefixtures("one_event_a_batch")
def test_an_input_gets_the_batches_from_one_on(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(spark))
    publish_batches(client, 1, 2)
    made = materialize(numbers, client.url, spark, io_manager=manager)
    events = made.asset_materializations_for_node("numbers")
    second = max(event.metadata["pgque/batch_id"].value for event in events)
    publish_batches(client, 3)
    read: list[DataFrame] = []

    materialize(
        numbers,
        client.url,
        spark,
        io_manager=manager,
        others=(reader(read, {"pgque/since": second}),),
    )

    assert values(read[0]) == [2, 3]


def test_batches_that_an_input_cannot_want_are_refused(tmp_path: Path) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    for metadata in ({"pgque/batches": "yesterday"}, {"pgque/since": "yesterday"}):
        context = dg.build_input_context(
            asset_key=dg.AssetKey("numbers"), definition_metadata=metadata
        )

        with pytest.raises(InvalidArgument, match="numbers wants the batches 'yesterday'"):
            manager.load_input(context)


@pytest.mark.usefixtures("one_event_a_batch")
def test_the_data_version_is_that_of_the_batch_and_the_attempt(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    publish_batches(client, 1, 2)

    made = materialize(numbers, client.url, spark, io_manager=manager)

    events = made.asset_materializations_for_node("numbers")
    assert [(event.tags or {})["dagster/data_version"] for event in events] == [
        ":".join(
            str(part)
            for part in (
                client.lineage(),
                event.metadata["pgque/batch_id"].value,
                event.metadata["pgque/epoch"].value,
            )
        )
        for event in events
    ]
