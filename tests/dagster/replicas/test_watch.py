"""The sensor that watches replicas, and what their pages in Dagster say."""

import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import (
    DeltaReplicas,
    IcebergReplicas,
    PgqueResource,
    PostgresReplicas,
    build_pgque_sensor,
    build_table_replicas,
    dead_letters_key,
    queue_key,
)
from pgque_dagster.client import Client
from pgque_dagster.client.batch import hold
from tests.support.dagster.assets import revenue
from tests.support.queues.sql import connect

SOURCE = dg.AssetKey(["shop", "source", "public", "orders_source"])


def bound(*replicas: dg.Definitions, pgque: PgqueResource | None = None) -> dg.Definitions:
    """Returns replicas with the resources that they need."""
    resources: dict[str, Any] = {
        "pgque": pgque or PgqueResource(url="postgresql://localhost/none"),
        "pyspark": dg.ResourceDefinition.none_resource(),
    }
    return dg.Definitions.merge(*replicas, dg.Definitions(resources=resources))


class Watched:
    """A project of replicas in PostgreSQL, whose sensors are evaluated as the daemon does."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url, self.instance = url, dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None
        replicas = build_table_replicas(
            "shop", ["public.orders"], target=PostgresReplicas(schema="copies"), **options
        )
        self.pgque = PgqueResource(url=url)
        self.repository = bound(replicas, pgque=self.pgque).get_repository_def()
        self.evaluate("shop_capture")

    def evaluate(self, sensor: str) -> list[Any]:
        """Evaluates a sensor. Returns the events, which are stored."""
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=self.repository,
            resources={"pgque": self.pgque},
        )
        done = self.repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursor = done.cursor
        for event in done.asset_events:
            self.instance.report_runless_asset_event(event)
        return list(done.asset_events)

    def not_evaluated(self) -> set[str]:
        """Returns the checks on the queue and its dead letters that have no result."""
        keys = [
            key
            for key in self.repository.asset_graph.asset_check_keys
            if "pgque" in key.asset_key.path
        ]
        storage = self.instance.event_log_storage
        found = storage.get_latest_asset_check_execution_by_key(keys)
        return {key.name for key in keys if key not in found}


@pytest.fixture
def watched(database_url: str) -> Iterator[Watched]:
    with connect(database_url) as db:
        db.execute(
            "create table orders (id int primary key, total numeric(9,2));"
            "insert into orders select generate_series(1, 700); analyze orders"
        )
    yield Watched(database_url)


def test_each_check_on_the_queue_has_a_result_and_pages_have_numbers_without_a_run(
    watched: Watched,
) -> None:
    assert watched.not_evaluated()

    events = watched.evaluate("shop_watch")

    assert watched.not_evaluated() == set()
    observed = {
        each.asset_key: each.metadata for each in events if isinstance(each, dg.AssetObservation)
    }
    assert set(observed) == {queue_key("shop"), dead_letters_key("shop"), SOURCE}
    source = observed[SOURCE]
    assert source["dagster/row_count"].value == 700
    assert source["pgque/bytes"].value > 8192
    age = time.time() - float(source["pgque/captured_since"].value)
    assert 0 <= age < 3600
    assert watched.evaluate("shop_watch") == [], "nothing changed within a minute"


def test_a_held_batch_is_red_within_a_minute_and_green_when_it_is_over(watched: Watched) -> None:
    watched.evaluate("shop_watch")
    with Client(watched.url) as client:
        client.force_next_tick("shop")
        client.ticker()
        batch = client.claim("shop", "shop", owner="a run")
        assert batch is not None
        batch.release()
        client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))

        changed = {each.check_name: each for each in watched.evaluate("shop_watch")}

        assert not changed["consumer_lag_shop"].passed
        assert "held after 3 attempts" in changed["consumer_lag_shop"].description
        assert not changed["held_batch"].passed
        again = client.claim("shop", "shop", owner="a run")
        assert again is not None
        again.ack()
    over = {each.check_name: each.passed for each in watched.evaluate("shop_watch")}
    assert over["consumer_lag_shop"] and over["held_batch"]


def test_names_that_stand_for_other_tables_are_found_without_a_run(watched: Watched) -> None:
    watched = Watched(watched.url, names=["public.o*"])

    def found() -> list[tuple[bool, str]]:
        events = watched.evaluate("shop_watch")
        checks = [each for each in events if isinstance(each, dg.AssetCheckEvaluation)]
        named = [each for each in checks if each.check_name == "wildcard_tables"]
        return [(each.passed, str(each.description)) for each in named]

    assert found() == [(True, "public.o* matches the replicated tables.")]
    with connect(watched.url) as db:
        db.execute("create table other (id int primary key)")
        ((passed, told),) = found()
        assert not passed and "public.other is not replicated" in told
        db.execute("alter table orders rename to former; drop table other")
        watched.cursor = None
        ((passed, told),) = found()
    assert not passed and "no table" in told


def test_a_database_that_does_not_answer_stops_no_daemon(watched: Watched) -> None:
    watched.pgque = PgqueResource(url="postgresql://localhost:1/none")
    assert watched.evaluate("shop_watch") == []


def test_a_cursor_of_another_version_is_passed_over(watched: Watched) -> None:
    watched.cursor = "what is this"
    assert watched.evaluate("shop_watch")


def test_the_sensor_of_batches_names_its_assets_and_says_stopped_only_if_it_is(
    watched: Watched,
) -> None:
    sensor = watched.repository.get_sensor_def("shop_sensor")

    (target,) = sensor.targets
    selection = target.resolvable_to_job.selection
    assert str(selection) == 'key:"shop/public/orders"'
    assert "STOPPED" not in str(sensor.description)
    assert "STOPPED" in str(build_pgque_sensor([revenue]).description)


def test_two_replicas_have_groups_of_their_own_and_sources_are_told_apart() -> None:
    defs = bound(
        *(
            build_table_replicas(name, ["public.orders"], target=DeltaReplicas(name))
            for name in ("shop", "bank")
        )
    )
    graph = defs.resolve_asset_graph()
    for name in ("shop", "bank"):
        replica = graph.get(dg.AssetKey([name, "public", "orders"]))
        (source,) = [key for key in replica.parent_keys if "source" in key.path]
        assert replica.key.path[-1] != source.path[-1]
        assert {graph.get(key).group_name for key in (source, replica.key, queue_key(name))} == {
            name
        }


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (DeltaReplicas("lake/"), {"dagster/uri": "lake/public/orders"}),
        (IcebergReplicas("lake"), {"dagster/table_name": "public.orders"}),
        (PostgresReplicas(schema="copies"), {"dagster/table_name": "copies.orders"}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_storage_of_a_replica_is_its_place(target: Any, place: dict[str, str]) -> None:
    defs = bound(build_table_replicas("shop", ["public.orders"], target=target))
    (spec,) = [
        spec
        for spec in defs.resolve_all_asset_specs()
        if spec.key == dg.AssetKey(["shop", "public", "orders"])
    ]
    stored = ("dagster/uri", "dagster/table_name")
    assert {key: spec.metadata[key] for key in stored if key in spec.metadata} == place
