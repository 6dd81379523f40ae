"""Two databases in one code location, with queues, consumers and batches of the same names."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import (
    DeltaReplicas,
    PgqueResource,
    SparkBatch,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_pgque_alerts,
    build_pgque_jobs,
    build_pgque_observation_sensor,
    build_pgque_schedule,
    build_pgque_sensor,
    build_pgque_ticker_sensor,
    build_queue_assets,
    build_queue_health_checks,
    build_table_maintenance_job,
    build_table_replicas,
    dead_letters_key,
    pgque_asset,
    pgque_multi_asset,
    queue_key,
)
from pgque_dagster.checks.alert_cursor import AlertCursor
from pgque_dagster.client import Client
from pgque_dagster.components.sinks import IcebergSinkOptions
from tests.dagster.conftest import BILLING, DEFAULT
from tests.dagster.support import SessionHolder
from tests.support.queues.events import make_queue, publish

# The cursor of an alert sensor that was evaluated before.
NOT_THE_FIRST = AlertCursor().model_dump_json()


def collects(batch: SparkBatch) -> dg.MaterializeResult[Any]:
    """Stores the payloads as metadata, and gives up those that are bad."""
    rows = batch.events(["ev_id", "ev_data"]).collect()
    bad = [row.ev_id for row in rows if row.ev_data.startswith("bad")]
    batch.dead_letter(bad, reason="bad")
    return dg.MaterializeResult(metadata={"payloads": sorted(row.ev_data for row in rows)})


ASSETS = {
    DEFAULT: pgque_asset(queue="orders", consumer="revenue", name="revenue")(collects),
    BILLING: pgque_asset(
        queue="orders", database=BILLING, consumer="revenue", name="revenue", key_prefix=BILLING
    )(collects),
}


def definitions_of(database: str) -> dg.Definitions:
    """What one database adds to the code location."""
    asset = ASSETS[database]
    return dg.Definitions(
        assets=[*build_queue_assets("orders", database=database, consumers=[asset]), asset],
        asset_checks=[
            *build_dead_letter_checks(["orders"], database=database),
            *build_queue_health_checks(["orders"], database=database),
            *build_consumer_lag_checks([asset], max_lag=timedelta(minutes=1)),
        ],
        sensors=[
            build_pgque_sensor([asset], min_events=0, max_age=timedelta(0), tick_wait=timedelta(0)),
            build_pgque_ticker_sensor(database=database),
            build_pgque_observation_sensor(["orders"], database=database),
            build_pgque_alerts(["orders"], notify=print, database=database),
        ],
        schedules=[build_pgque_schedule([asset], cron_schedule="@daily")],
        jobs=[
            *build_pgque_jobs(database),
            build_table_maintenance_job([], database=database),
        ],
    )


DEFINITIONS = dg.Definitions.merge(definitions_of(DEFAULT), definitions_of(BILLING))


def with_resources(definitions: dg.Definitions, *databases: str) -> dg.RepositoryDefinition:
    """Loads definitions that have the resources of these databases alone."""
    given = dg.Definitions(resources=dict.fromkeys([*databases, "pyspark"]))
    return dg.Definitions.merge(definitions, given).get_repository_def()


class Location:
    """The code location, with its resources."""

    def __init__(self, clients: dict[str, Client], spark: SparkSession) -> None:
        self.clients = clients
        self.instance = dg.DagsterInstance.ephemeral()
        self.resources: dict[str, Any] = {
            name: PgqueResource(url=client.url) for name, client in clients.items()
        }
        given = {**self.resources, "pyspark": SessionHolder(spark)}
        self._definitions = dg.Definitions.merge(DEFINITIONS, dg.Definitions(resources=given))
        self.repository = self._definitions.get_repository_def()

    def evaluate(self, sensor: str, cursor: str | None = None) -> Any:
        context = dg.build_sensor_context(
            instance=self.instance,
            resources=self.resources,
            repository_def=self.repository,
            cursor=cursor,
        )
        return self.repository.get_sensor_def(sensor)(context)

    def run(
        self, *selected: dg.AssetKey, tags: dict[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        job = self._definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=list(selected), instance=self.instance, tags=tags
        )

    def run_job(self, name: str, **config: Any) -> dg.ExecuteInProcessResult:
        job = self._definitions.resolve_job_def(name)
        return job.execute_in_process(run_config=config or None, instance=self.instance)

    def check(self, database: str) -> dict[str, dg.AssetCheckEvaluation]:
        """Runs the checks on the assets of a database's queue; returns the results by name."""
        keys = [queue_key("orders", database), dead_letters_key("orders", database)]
        job = dg.define_asset_job("checks", dg.AssetSelection.checks_for_assets(*keys))
        merged = dg.Definitions.merge(self._definitions, dg.Definitions(jobs=[job]))
        done = merged.resolve_job_def("checks").execute_in_process(instance=self.instance)
        found = done.get_asset_check_evaluations()
        assert {each.asset_key for each in found} == set(keys)
        return {each.check_name: each for each in found}


@pytest.fixture
def location(two_clients: dict[str, Client], spark: SparkSession) -> Location:
    return Location(two_clients, spark)


def test_two_databases_are_consumed_side_by_side_and_nothing_of_them_mixes(
    location: Location,
) -> None:
    default, billing = location.clients.values()
    publish(default, ["a", "b"])
    publish(billing, ["c", "bad d"])

    (of_default,) = location.evaluate("pgque_sensor").run_requests
    (of_billing,) = location.evaluate("billing__pgque_sensor").run_requests

    # Databases that are copies of a template number their batches alike.
    assert of_default.tags["pgque/batch_id"] == of_billing.tags["pgque/batch_id"]
    assert of_default.run_key != of_billing.run_key
    assert "pgque/database" not in of_default.tags
    assert of_billing.tags["pgque/database"] == BILLING
    assert of_default.asset_selection == [dg.AssetKey("revenue")]
    assert of_billing.asset_selection == [dg.AssetKey([BILLING, "revenue"])]

    for request, payloads in ((of_default, ["a", "b"]), (of_billing, ["bad d", "c"])):
        (key,) = request.asset_selection
        done = location.run(key, tags=request.tags)
        (made,) = done.asset_materializations_for_node("__".join(key.path))
        assert made.metadata["payloads"].value == payloads
    assert made.metadata["pgque/database"].value == BILLING
    assert default.next_batch("orders", "revenue") is None
    assert billing.next_batch("orders", "revenue") is None
    assert default.dead_letters("orders") == []
    assert [letter.payload for letter in billing.dead_letters("orders")] == ["bad d"]

    assert location.check(DEFAULT)["dead_letters"].passed
    failed = location.check(BILLING)["dead_letters"]
    assert not failed.passed
    assert "`billing__pgque_replay_dead_letters`" in str(failed.metadata["what_to_do"].value)
    assert location.check(BILLING)["consumer_lag_revenue"].passed

    run = {"ops": {"billing__replay_dead_letters": {"config": {"queue": "orders"}}}}
    replayed = location.run_job("billing__pgque_replay_dead_letters", **run)
    (observed,) = replayed.get_asset_observation_events()
    assert observed.asset_key == dead_letters_key("orders", BILLING)
    assert billing.dead_letters("orders") == []
    assert location.check(BILLING)["dead_letters"].passed


def test_a_run_of_one_database_skips_the_assets_of_the_other(location: Location) -> None:
    for client in location.clients.values():
        publish(client, ["a"])
    (request,) = location.evaluate("pgque_sensor").run_requests

    done = location.run(*(asset.key for asset in ASSETS.values()), tags=request.tags)

    made = [event.asset_key for event in done.get_asset_materialization_events()]
    assert made == [dg.AssetKey("revenue")]
    assert location.clients[BILLING].next_batch("orders", "revenue") is not None


def test_observations_ticks_and_alerts_are_of_their_database(location: Location) -> None:
    default, billing = location.clients.values()
    publish(billing, ["a"])

    seen = {
        event.asset_key: event.metadata
        for prefix in ("", "billing__")
        for event in location.evaluate(f"{prefix}pgque_observation_sensor").asset_events
    }
    of_default, of_billing = (seen[queue_key("orders", name)] for name in location.clients)
    assert of_default["pgque/depth"].value == 0
    assert of_billing["pgque/depth"].value == 1
    assert "billing/revenue" not in str(of_default["pgque/consumers"])
    assert "billing/revenue" in str(of_billing["pgque/consumers"])
    done = location.run(queue_key("orders", BILLING))
    (observed,) = done.get_asset_observation_events()
    assert observed.asset_key == queue_key("orders", BILLING)

    default.drop_queue("orders", force=True)
    assert "0 of 0 alerts" in location.evaluate("billing__pgque_alerts").skip_reason.skip_message
    found = location.evaluate("pgque_alerts", cursor=NOT_THE_FIRST).skip_reason.skip_message
    assert "1 of 1 alerts" in found
    told = location.evaluate("billing__pgque_ticker_sensor").skip_message
    assert "ticking=sensor of the resource billing" in told


def test_an_alert_names_its_database(database_url: str) -> None:
    alerts: list[Any] = []
    sensor = build_pgque_alerts(["nosuch"], notify=alerts.append, database=BILLING)

    context = dg.build_sensor_context(cursor=NOT_THE_FIRST)
    sensor(context, billing=PgqueResource(url=database_url))

    (alert,) = alerts
    assert alert.database == BILLING
    assert str(alert).startswith("billing: queue nosuch: queue, since")


def test_the_default_database_keeps_all_names_and_others_put_theirs_in_front() -> None:
    repository = with_resources(DEFINITIONS, DEFAULT, BILLING)

    names = {each.name for each in [*repository.sensor_defs, *repository.schedule_defs]}
    names |= {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    default = {name for name in names if not name.startswith("billing__")}
    assert default == {
        *("pgque_sensor", "pgque_ticker_sensor", "pgque_observation_sensor", "pgque_alerts"),
        *("pgque_schedule", "pgque_maintain_tables"),
        *(f"pgque_{what}_dead_letters" for what in ("add", "replay", "purge")),
    }
    assert names - default == {f"billing__{name}" for name in default}
    assert queue_key("orders") == dg.AssetKey(["pgque", "orders_queue"])
    assert queue_key("orders", BILLING) == dg.AssetKey(["billing", "orders_queue"])
    assert dead_letters_key("orders", BILLING) == dg.AssetKey(["billing", "orders_dlq"])
    graph = repository.asset_graph
    for database, asset in ASSETS.items():
        assert graph.get(asset.key).parent_keys == {queue_key("orders", database)}
        assert graph.get(dead_letters_key("orders", database)).parent_keys == {asset.key}
    (spec,) = ASSETS[DEFAULT].specs
    assert "pgque/database" not in spec.metadata


def test_commands_in_texts_name_the_database(location: Location) -> None:
    queue, letters = build_queue_assets("orders", database=BILLING)
    assert "`pgque --database billing status orders`" in str(next(iter(queue.specs)).description)
    assert "`pgque --database billing dead-letters list orders`" in str(
        next(iter(letters.specs)).description
    )
    location.clients[BILLING].drop_queue("orders", force=True)

    told = location.evaluate("billing__pgque_sensor").skip_message

    assert "orders/revenue of database billing" in told
    assert "`pgque --database billing create-queue orders`" in told


def test_replicas_of_two_databases_have_names_of_their_own() -> None:
    default, billing = (
        build_table_replicas(
            "shop", ["public.orders"], target=DeltaReplicas(f"lake/{name}"), database=name
        )
        for name in (DEFAULT, BILLING)
    )

    alone = with_resources(billing, BILLING)
    assert {key for sensor in alone.sensor_defs for key in sensor.required_resource_keys} == {
        BILLING
    }
    repository = with_resources(dg.Definitions.merge(default, billing), DEFAULT, BILLING)

    assert dg.AssetKey(["shop", "public", "orders"]) in repository.assets_defs_by_key
    assert dg.AssetKey(["billing", "shop", "public", "orders"]) in repository.assets_defs_by_key
    kinds = ("capture", "sensor", "watch", "verify_sensor")
    assert {sensor.name for sensor in repository.sensor_defs} == {
        *(f"{prefix}shop_{kind}" for kind in kinds for prefix in ("", "billing__")),
    }
    assert repository.has_job("shop_repair")
    assert repository.has_job("billing__shop_repair")


def test_a_function_gets_the_resource_by_the_name_of_the_database(
    location: Location, spark: SparkSession
) -> None:
    seen: list[str | None] = []

    @pgque_asset(queue="orders", database=BILLING, consumer="revenue")
    def both(batch: SparkBatch, billing: PgqueResource, pgque: PgqueResource) -> None:
        seen.extend([billing.url, pgque.url])

    publish(location.clients[BILLING], ["a"])
    done = dg.materialize([both], resources={**location.resources, "pyspark": SessionHolder(spark)})

    assert done.success
    assert seen == [location.clients[BILLING].url, location.clients[DEFAULT].url]


def test_windows_and_sinks_need_the_resource_of_their_database_alone() -> None:
    hours = dg.HourlyPartitionsDefinition("2026-05-24-00:00")
    asset = pgque_asset(queue="orders", database=BILLING, partitions_def=hours)(collects)
    (spec,) = asset.specs
    assert asset.required_resource_keys == {BILLING, "pyspark", "io_manager"}
    assert [dep.asset_key for dep in spec.deps] == [queue_key("orders", BILLING)]
    assert spec.metadata["pgque/database"] == BILLING

    sink = IcebergSinkOptions(type="iceberg", warehouse="lake").io_manager(BILLING)

    assert sink.required_resource_keys == {BILLING, "pyspark"}


def test_one_database_under_two_names_is_refused_by_both(
    database_url: str, spark: SparkSession
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, ["a"])
        location = Location({DEFAULT: client, BILLING: client}, spark)
        assert location.evaluate("pgque_sensor").run_requests

        for sensor in ("billing__pgque_sensor", "pgque_sensor"):
            told = location.evaluate(sensor).skip_message
            assert "the resources billing and pgque reach the same database" in told
        with pytest.raises(Exception, match="reach the same database"):
            location.run(ASSETS[BILLING].key)
        assert client.next_batch("orders", "revenue") is not None


def test_a_name_that_no_resource_can_have_is_refused() -> None:
    builds: list[Callable[[Any], Any]] = [
        lambda name: pgque_asset(queue="orders", database=name)(collects),
        lambda name: pgque_multi_asset(queue="orders", database=name, specs=[dg.AssetSpec("a")])(
            collects
        ),
        lambda name: build_queue_assets("orders", database=name),
        lambda name: queue_key("orders", name),
        build_pgque_jobs,
        lambda name: build_table_maintenance_job([], database=name),
    ]
    words: list[Any] = ["billing-eu", "", "1st", "a__b", "_a", "a_", "class", "batch", "pyspark"]
    for name in [*words, "ä", 7, None]:
        for build in builds:
            with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"database is {name!r}: "):
                build(name)


def test_what_belongs_to_two_databases_is_refused() -> None:
    for build in (
        build_pgque_sensor,
        lambda assets: build_pgque_schedule(assets, cron_schedule="@daily"),
        lambda assets: build_consumer_lag_checks(assets, max_lag=timedelta(1)),
    ):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="databases pgque and billing"):
            build(list(ASSETS.values()))
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match="is not on queue orders of database pgque"
    ):
        build_queue_assets("orders", consumers=[ASSETS[BILLING]])


def test_a_database_without_its_resource_is_refused_when_the_definitions_load() -> None:
    for missing in (
        dg.Definitions(assets=[ASSETS[BILLING]], resources={DEFAULT: None, "pyspark": None}),
        dg.Definitions(asset_checks=build_dead_letter_checks(["orders"], database=BILLING)),
        dg.Definitions(jobs=build_pgque_jobs(BILLING)),
    ):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="'billing' required by"):
            missing.get_repository_def()


def test_the_assets_of_a_queue_twice_are_refused() -> None:
    twice = dg.Definitions(
        assets=[*build_queue_assets("orders"), *build_queue_assets("orders")],
        resources={DEFAULT: None},
    )
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="orders_queue"):
        twice.get_repository_def()
