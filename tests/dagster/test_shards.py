"""One queue over several databases: a run has a batch of each, and one commit stores them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any

import dagster as dg
import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    SparkBatch,
    build_consumer_lag_checks,
    build_pgque_schedule,
    build_queue_assets,
    pgque_asset,
    queue_key,
)
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.sensors import databases
from tests.conftest import INSTALL_SQL, new_server
from tests.dagster.support import StoringIOManager
from tests.support.dagster.dg_project import DgProject
from tests.support.dagster.sharded_project import ShardedProject, payloads, shards_of
from tests.support.queues.events import make_queue
from tests.support.queues.windows import send_at_hours
from tests.support.spark.stored_tables import iceberg_catalog

# The other tests here are of Delta, and tests/spark/sinks/test_vectors.py is of all kinds.
EVERY_KIND = pytest.mark.parametrize(
    "sharded",
    ["postgres", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("delta", "iceberg"))],
    indirect=True,
)


@EVERY_KIND
def test_a_run_has_a_batch_of_each_shard_and_stores_them_by_one_commit(
    sharded: ShardedProject,
) -> None:
    sharded.send(eu=[1, 2], us=[1, 3])

    (request,) = sharded.requests()
    assert shards_of(request) == ["eu", "us"]
    done = sharded.run(request.tags)

    assert done.success
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1), ("us", 3)]
    assert sharded.left() == []
    (made,) = done.asset_materializations_for_node("revenue")
    assert made.metadata["pgque/events"].value == 4
    assert made.metadata["pgque/shards"].value == {
        shard: {
            "pgque/batch_id": 1,
            "pgque/prev_tick_id": 1,
            "pgque/tick_id": 2,
            "pgque/events": 2,
        }
        for shard in ("eu", "us")
    }
    assert list(sharded.folder.rglob("_pgque/vectors/*")) == []

    sharded.send(us=[4])
    assert sharded.consume() == [["us"]]
    assert sharded.rows()[2:] == [("us", 1), ("us", 3), ("us", 4)]


def test_a_batch_that_fails_does_not_stop_those_of_other_shards(sharded: ShardedProject) -> None:
    def picky(batch: SparkBatch) -> DataFrame:
        frame = batch.payload("number bigint not null")
        if frame.where("number = 13").count():
            raise ValueError("13")
        return frame

    sharded.compute = picky
    sharded.send(eu=[1], us=[13])
    (request,) = sharded.requests(max_attempts=2)
    assert not sharded.run(request.tags).success

    for request in sharded.requests(max_attempts=2):
        assert sharded.run(request.tags).success == (shards_of(request) == ["eu"])

    assert sharded.rows() == [("eu", 1)]
    told = sharded.evaluate(max_attempts=2)
    assert isinstance(told, str)
    assert "shard us: " in told
    assert "held after 2 attempts" in told
    sharded.send(eu=[2])
    (request,) = sharded.requests(max_attempts=2)
    assert sharded.run(request.tags).success
    assert sharded.rows() == [("eu", 1), ("eu", 2)]


def test_a_shard_is_added_and_removed(sharded: ShardedProject, shard_urls: dict[str, str]) -> None:
    sharded.send(eu=[1], us=[1])
    sharded.consume()

    sharded.urls = dict(shard_urls)
    sharded.send(asia=[1], us=[2])
    assert sharded.consume() == [["asia", "us"]]

    sharded.send(eu=[2], us=[3])
    sharded.urls = {"asia": shard_urls["asia"], "us": shard_urls["us"]}
    assert sharded.consume() == [["us"]]
    assert sharded.rows() == [("asia", 1), ("eu", 1), ("us", 1), ("us", 2), ("us", 3)]

    # Nothing of it is lost.
    sharded.urls = dict(shard_urls)
    assert sharded.consume() == [["eu"]]
    assert ("eu", 2) in sharded.rows()


def test_a_server_that_is_down_is_left_out_and_named(
    shard_urls: dict[str, str], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_AGAIN_SECONDS", 0.0)
    with new_server() as other:
        install(other.url)
        sharded = ShardedProject(
            {"eu": shard_urls["eu"], "us": other.url}, "delta", tmp_path / "lake", spark
        )
        with Client(other.url) as client:
            make_queue(client)
        sharded.send(eu=[1], us=[1])
        (request,) = sharded.requests()
        other.stop()

        assert sharded.run(request.tags).success, "the other shard goes on"
        assert sharded.rows() == [("eu", 1)]
        told = sharded.evaluate()
        assert isinstance(told, str)
        assert "shard us is left out: " in told
        assert checks(sharded) == {"eu": True, "us": False}

        other.start()
        assert sharded.consume() == [["us"]]
        assert sharded.rows() == [("eu", 1), ("us", 1)]
        assert checks(sharded) == {"eu": True, "us": True}


def checks(sharded: ShardedProject) -> dict[str, bool]:
    """The results of the checks on the lag, by shard."""
    found = build_consumer_lag_checks([sharded.asset], max_lag=timedelta(minutes=1))
    assets = [
        asset for shard in sharded.urls for asset in build_queue_assets("orders", database=shard)
    ]
    definitions = dg.Definitions(
        assets=assets,
        asset_checks=found,
        resources=sharded.resources,
        jobs=[dg.define_asset_job("lag", dg.AssetSelection.checks(*found))],
    )
    done = definitions.resolve_job_def("lag").execute_in_process(instance=sharded.instance)
    return {each.asset_key.path[0]: each.passed for each in done.get_asset_check_evaluations()}


def install(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTALL_SQL.read_bytes())


@EVERY_KIND
def test_a_shard_of_another_incarnation_is_left_out_until_somebody_decides(
    sharded: ShardedProject, shard_urls: dict[str, str]
) -> None:
    sharded.send(eu=[1], us=[1])
    sharded.consume()

    # As a database that was restored is another incarnation.
    sharded.urls = {"eu": shard_urls["eu"], "us": shard_urls["asia"]}
    sharded.send(eu=[2], us=[2])
    (request,) = sharded.requests()
    assert sharded.run(request.tags).success

    assert sharded.left() == ["us"]
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1)]
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    told = str(failure.step_failure_data.error)
    assert "holds batches of shard us of incarnation" in told

    adopt(sharded, told)
    assert sharded.consume() == [["us"]]
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1), ("us", 2)]


def adopt(sharded: ShardedProject, told: str) -> None:
    """Does what the error says."""
    what = told.partition("Then adopt it: ")[2].splitlines()[0]
    match sharded.kind:
        case "delta":
            exec(what.removesuffix("."), {"DeltaTable": DeltaTable})
        case "iceberg":
            table = iceberg_catalog(sharded.target).load_table("pgque.revenue")
            exec(what.removesuffix("."), {"table": table})
        case "postgres":
            with psycopg.connect(sharded.target) as db:
                db.execute(what.encode())


def test_a_table_is_either_of_shards_or_of_one_database(sharded: ShardedProject) -> None:
    single = pgque_asset(queue="orders", database="eu", consumer="revenue", name="revenue")(
        payloads
    )

    def run_alone() -> str:
        done = dg.materialize([single], resources=sharded.resources, raise_on_error=False)
        return "".join(
            str(each.step_failure_data.error) for each in done.all_events if each.is_step_failure
        )

    sharded.send(eu=[1])
    assert sharded.consume()
    sharded.send(eu=[2])
    assert "over several databases, and accepts no batches of one" in run_alone()

    sharded.folder = sharded.folder / "other"
    assert run_alone() == ""
    sharded.send(eu=[3], us=[3])
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    told = str(failure.step_failure_data.error)
    assert "was not created for a queue over several" in told
    assert "first finish it with the definition of one database" in told
    assert sharded.left() == ["eu", "us"]


def test_events_of_shards_are_nacked_and_dead_lettered_by_shard(sharded: ShardedProject) -> None:
    def fails(batch: SparkBatch) -> DataFrame:
        events = batch.events(["ev_id", "ev_data"])
        bad = events.where("ev_data like '%13%'")
        batch.dead_letter(bad, reason="13")
        with pytest.raises(InvalidArgument, match="the columns shard and ev_id"):
            batch.nack([1])
        batch.nack(events.where("ev_data like '%14%' and shard = 'us'"))
        return events.where("ev_data like '%1}%'").selectExpr("shard", "1 number")

    sharded.compute = fails
    sharded.send(eu=[1, 13, 14], us=[14, 1])
    (request,) = sharded.requests()
    done = sharded.run(request.tags)

    assert done.success
    assert sharded.rows() == [("eu", 1), ("us", 1)]
    assert (sharded.dead_letters("eu"), sharded.dead_letters("us")) == (1, 0)
    (made,) = done.asset_materializations_for_node("revenue")
    assert (made.metadata["pgque/nacked"].value, made.metadata["pgque/dead_lettered"].value) == (
        *(1, 1),
    )


def test_what_cannot_be_stored_by_one_commit_is_refused(sharded: ShardedProject) -> None:
    def none(batch: SparkBatch) -> None:
        """Stores nothing by a sink."""

    blocking = dg.AssetCheckSpec("positive", asset="revenue", blocking=True)
    refused: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
        ("an IO manager stores the result", {}, none),
        ("a check cannot block its ack", {"check_specs": [blocking]}, payloads),
        ("leave out partitions, or databases", {"partitions": 4}, payloads),
        ("pass database or databases, not both", {"database": "asia"}, payloads),
        ("databases is a string", {"databases": "eu"}, payloads),
        ("databases has a name twice", {"databases": ["eu", "eu"]}, payloads),
    ]
    for told, options, compute in refused:
        given = {"queue": "orders", "databases": ["eu", "us"], "name": "revenue", **options}
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=told):
            pgque_asset(**given)(compute)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="more than 1"):
        sharded.evaluate(max_attempts=1)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="or for an asset with databases"):
        build_pgque_schedule([sharded.asset], cron_schedule="@daily")

    sharded.send(eu=[1])
    sharded.compute = lambda batch: dg.MaterializeResult()
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    assert "were not stored by the IO manager" in str(failure.step_failure_data.error)
    assert sharded.left() == ["eu"]

    resources = {**sharded.resources, "io_manager": StoringIOManager()}
    done = dg.materialize([sharded.asset], resources=resources, raise_on_error=False)
    (failure,) = [each for each in done.all_events if each.is_step_failure]
    assert "StoringIOManager does not store" in str(failure.step_failure_data.error)


ICEBERG = "type: iceberg, warehouse: lake"
TRANSFORM = """\
def numbers(orders):
    return orders.select("shard", "number")
"""
BATCHES = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  consumer: revenue
  consumer_lag_checks: {max_lag: 1m}
"""
WINDOWS = """\
type: pgque_dagster.WindowComponent
attributes:
  name: hourly
  partitions_def: "{{ dg.HourlyPartitionsDefinition(start_date='2026-01-01-00:00') }}"
"""


def test_shards_in_yaml(
    project: DgProject, sharded: ShardedProject, instance: dg.DagsterInstance
) -> None:
    for shard, url in sharded.urls.items():
        attributes = f"attributes:\n  database: {shard}\n"
        project.write(
            f"{shard}_db", f"type: pgque_dagster.PgqueComponent\n{attributes}  url: '{url}'\n"
        )
        project.write(
            f"{shard}_orders", f"type: pgque_dagster.QueueComponent\n{attributes}  queue: orders\n"
        )
    for name, text in (("revenue", BATCHES), ("hourly", WINDOWS)):
        project.write(
            name,
            f"{text}  queue: orders\n  databases: [eu, us]\n  transform: .transform.numbers\n"
            "  payload: {schema: number bigint}\n"
            f"  sink: {{type: delta, base_dir: '{sharded.folder}'}}\n",
        )
        (project.defs / name / "transform.py").write_text(TRANSFORM)
    for url, numbers in zip(sharded.urls.values(), ([1, 3], [2, 4]), strict=True):
        with Client(url) as client:
            send_at_hours(client, [[f'{{"number": {number}}}'] for number in numbers])

    definitions = project.load()
    keys = {queue_key("orders", shard) for shard in sharded.urls}
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey("hourly")).parent_keys == keys
    repository = definitions.get_repository_def()
    context = dg.build_sensor_context(
        instance=instance, resources=sharded.databases, repository_def=repository
    )
    result: Any = repository.get_sensor_def("numbers_sensor")(context)
    (request,) = result.run_requests
    job = definitions.resolve_implicit_global_asset_job_def()
    runs: list[dict[str, Any]] = [
        {"asset_selection": request.asset_selection, "tags": request.tags},
        *(
            {"asset_selection": [dg.AssetKey("hourly")], "partition_key": f"2026-01-01-{hour}:00"}
            for hour in ("01", "00")
        ),
    ]
    for each in runs:
        assert job.execute_in_process(instance=instance, **each).success
    for name, column, expected in (
        ("numbers", "shard", [("eu", 1), ("eu", 3), ("us", 2), ("us", 4)]),
        ("hourly", "batch_id", [(202601010000 + 100 * (n > 2), n) for n in (1, 2, 3, 4)]),
    ):
        stored = DeltaTable(sharded.folder / name).to_pyarrow_table().to_pylist()
        assert sorted((row[column], row["number"]) for row in stored) == expected

    # Where no shard has the catalog, the default database has it.
    for name in ("revenue", "hourly"):
        project.replace(name, f"type: delta, base_dir: '{sharded.folder}'", ICEBERG)
    with pytest.raises(Exception) as error:
        project.load().get_repository_def()
    assert "'pgque'" in "".join(format_exception(error.value))
    project.write("pgque_db", "type: pgque_dagster.PgqueComponent\n")
    assert project.load().get_repository_def()
