"""The IO managers of Delta and Iceberg tables: batches stay apart, and each counts once."""

import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    DeltaBatchIOManager,
    IcebergBatchIOManager,
    PgqueResource,
    SparkBatch,
    pgque_asset,
    pgque_replay_asset,
)
from pgque_dagster.client import Client, InvalidArgument
from tests.dagster.support import SessionHolder, materialize
from tests.support.events import claim, make_queue, publish
from tests.support.stored_tables import iceberg_catalog

PAGE = Path(__file__).parents[3] / "docs" / "lake.md"


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        make_queue(client)
        yield client


@pytest.fixture(params=["delta", "iceberg"])
def manager(
    request: pytest.FixtureRequest, client: Client, spark: SparkSession, tmp_path: Path
) -> dg.IOManager:
    if request.param == "delta":
        return DeltaBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(spark))
    return IcebergBatchIOManager(
        pgque=PgqueResource(url=client.url), warehouse=str(tmp_path), pyspark=SessionHolder(spark)
    )


@pgque_asset(queue="orders", consumer="revenue")
def names(batch: SparkBatch) -> DataFrame:
    return batch.events(["ev_data"]).toDF("name")


def test_batches_are_rows_of_one_table_which_a_downstream_asset_reads(
    client: Client, spark: SparkSession, manager: dg.IOManager
) -> None:
    found: list[tuple[str, int]] = []

    @dg.asset
    def report(names: DataFrame) -> None:
        found[:] = sorted((row.name, row.batch_id) for row in names.collect())

    ids = []
    for payloads in (["a", "b"], ["c"]):
        publish(client, payloads)
        result = materialize(names, client.url, spark, io_manager=manager, others=(report,))
        assert result.success
        (event,) = result.asset_materializations_for_node("names")
        assert event.metadata["pgque/rows"].value == len(payloads)
        assert event.metadata["pgque/table_version"].value
        ids.append(event.metadata["pgque/batch_id"].value)

    assert found == [("a", ids[0]), ("b", ids[0]), ("c", ids[1])]


def test_a_downstream_asset_may_want_some_batches(
    client: Client, spark: SparkSession, manager: dg.IOManager
) -> None:
    found: list[str] = []

    @dg.asset(ins={"names": dg.AssetIn(metadata={"pgque/batches": "run"})})
    def report(names: DataFrame) -> None:
        found[:] = [row.name for row in names.collect()]

    for payload in ("a", "b"):
        publish(client, [payload])
        assert materialize(
            names,
            client.url,
            spark,
            io_manager=manager,
            others=(report,),
            instance=dg.DagsterInstance.ephemeral(),
        ).success

    assert found == ["b"]


def test_each_replay_has_its_rows_in_a_table_with_the_column_replay(
    client: Client, spark: SparkSession, manager: dg.IOManager
) -> None:
    found: list[tuple[str, str]] = []

    @pgque_replay_asset(queue="orders", name="replayed")
    def replayed(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"]).toDF("name")

    @dg.asset
    def report(replayed: DataFrame) -> None:
        assert replayed.columns == ["name", "replay", "batch_id"]
        found[:] = [(row.name, row.replay) for row in replayed.collect()]

    publish(client, ["a", "b"])
    batch = claim(client)
    ticks = {"from_tick": batch.lease.prev_tick_id, "to_tick": batch.lease.tick_id}
    runs = [
        dg.materialize(
            [replayed, report],
            run_config={"ops": {"replayed": {"config": ticks}}},
            resources={
                "pgque": PgqueResource(url=client.url),
                "pyspark": SessionHolder(spark),
                "io_manager": manager,
            },
        )
        for _ in range(2)
    ]

    replays = [f"replay-{run.run_id[:8]}" for run in runs]
    assert sorted(found) == sorted((name, replay) for name in "ab" for replay in replays)


def test_what_is_no_dataframe_is_refused_and_the_batch_stays(
    client: Client, spark: SparkSession, manager: dg.IOManager
) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", name="names")
    def number(batch: SparkBatch) -> int:
        return 1

    result = materialize(number, client.url, spark, io_manager=manager)

    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "names returned int" in str(failure.step_failure_data.error)
    assert client.next_batch("orders", "revenue") is not None


def test_the_assets_of_the_docs_store_in_the_formats_that_they_choose(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "Definitions(" in block)
    monkeypatch.setenv("PGQUE_URL", client.url)
    made: dict[str, dg.Definitions] = {}
    exec(text.replace("s3://bucket", str(tmp_path)), made)
    client.register_consumer("orders", "lines")
    publish(client, [{"product": "tea", "total": 4.5}, {"product": "tea", "total": 1.5}])

    run = made["defs"].resolve_implicit_global_asset_job_def().execute_in_process()

    assert run.success
    lines = DeltaTable(f"{tmp_path}/tables/lines").to_pyarrow_table()
    assert sorted(lines["total"].to_pylist()) == [1.5, 4.5]
    revenue = iceberg_catalog(client.url).load_table("sales.revenue").scan().to_arrow()
    assert (revenue["product"].to_pylist(), revenue["total"].to_pylist()) == (["tea"], [6.0])


@pytest.mark.parametrize(("mode", "key"), [("upsert", []), ("append", ["product"])])
def test_a_key_that_does_not_go_with_the_mode_is_refused_at_once(mode: str, key: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=f"mode {mode}"):
        DeltaBatchIOManager(base_dir="output", mode=mode, key=key)
