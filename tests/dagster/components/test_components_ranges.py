"""Attributes out of range are refused when a component is loaded, with the file and line."""

import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.sensors import build_pgque_ticker_sensor
from pgque_dagster.spark.payload.ddl import check_ddl
from pgque_dagster.spark.payload.schema import parse_schema
from tests.support.dg_project import DgProject

CONSUMER = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transform: math.sqrt
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    project.write("pgque", "type: pgque_dagster.PgqueComponent\nattributes: {queues: [orders]}\n")
    return project


def causes(error: BaseException | None) -> str:
    """Returns the messages of an error and all its causes."""
    return "" if error is None else f"{error}\n{causes(error.__cause__ or error.__context__)}"


@pytest.mark.parametrize(
    ("attributes", "line", "problem"),
    [
        ("sensor:\n  max_events: 0", 6, "it must be 1 or more"),
        ("sensor:\n  max_events: -5", 6, "it must be 1 or more"),
        ("sensor:\n  max_events: 2147483648", 6, "it must be at most 2147483647"),
        ("sensor:\n  min_events: 11\n  max_events: 10", 5, "min_events is 11"),
        ("sensor:\n  backoff: -1", 6, "it must not be negative"),
        ("sensor:\n  max_age: -1", 6, "it must not be negative"),
        ("sensor:\n  max_age: 999999999d", 6, "at most 365 days"),
        ("sensor:\n  minimum_interval_seconds: -1", 6, "it must be 1 or more"),
        ("lease_ttl: 999999999d", 5, "at most 1 day"),
        ("lease_ttl: 0s", 5, "more than 0"),
        ("payload:\n  schema: total dubble", 6, "Spark has no type dubble (did you mean double?)"),
        ("payload:\n  schema: ''", 6, "has no field"),
        ("payload:\n  schema: a int\n  keep: [ev_id, ev_tme]", 7, "events have no column 'ev_tme'"),
        ("sink:\n  type: postgres\n  mode: upsert", 5, "name the columns of a unique index"),
        ("sink:\n  type: postgres\n  key: [id]", 5, "mode is append, which has no key"),
        ("sink:\n  type: delta\n  base_dir: d\n  mode: upsert", 5, "name the columns of the key"),
        ("sink:\n  type: delta\n  base_dir: d\n  key: [id]", 5, "mode is append, which has no key"),
        ("partitions: 0", 5, "it must be 1 or more"),
        ("partitions: 257", 5, "it must be at most 256"),
        ("partitions: 8\nsensor:\n  parallel_runs: 2", 2, "parallel_runs of the sensor is 2"),
        ("start_at: soon", 5, "'soon' is no position"),
        ("start_at: 2026-01-01T00:00", 5, "has no time zone"),
        ("start_at: -1", 5, "-1 is no position"),
        ("consumer_lag_checks:\n  max_lag: 0", 6, "it must be more than 0"),
    ],
)
def test_an_attribute_out_of_range_is_an_error_with_its_line(
    project: DgProject, attributes: str, line: int, problem: str
) -> None:
    project.write("revenue", CONSUMER + textwrap.indent(attributes, "  ") + "\n")

    with pytest.raises(Exception, match=r"revenue|pgque|defs") as raised:
        project.load()

    told = causes(raised.value)
    assert problem in told
    assert f"revenue/defs.yaml:{line}" in told


def test_a_retention_is_set_on_the_queue(project: DgProject, database_url: str) -> None:
    project.replace("pgque", "queues: [orders]", f"url: '{database_url}'")
    project.write(
        "orders",
        "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n  retention: 7 days\n",
    )
    resource = (project.load().resources or {})["pgque"]
    with resource.client() as client, client.transaction() as connection:
        row = connection.execute("select queue_retention::text from pgque.queue").fetchone()

    assert row == ("7 days",)


def test_a_retention_that_is_set_twice_is_refused(project: DgProject) -> None:
    project.replace("pgque", "queues: [orders]", "queue_options: {orders: {retention: 3 days}}")
    project.write(
        "orders",
        "type: pgque_dagster.QueueComponent\nattributes: {queue: orders, retention: 7d}\n",
    )
    with pytest.raises(Exception, match=r"orders|pgque|defs") as raised:
        project.load()
    assert "leave one out" in causes(raised.value)


@pytest.mark.parametrize("retention", ["0", "-1", "soon", "999999999d", "7 moons"])
def test_a_retention_out_of_range_is_an_error_with_its_line(
    project: DgProject, retention: str
) -> None:
    project.write(
        "orders",
        "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n"
        f"  retention: {retention}\n",
    )
    with pytest.raises(Exception, match=r"orders|pgque|defs") as raised:
        project.load()
    assert "orders/defs.yaml:4" in causes(raised.value)


def test_an_observation_interval_out_of_range_is_an_error_with_its_line(
    project: DgProject,
) -> None:
    project.write(
        "orders",
        "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n"
        "  observation:\n    interval: -5\n",
    )

    with pytest.raises(Exception, match=r"orders|pgque|defs") as raised:
        project.load()
    assert "orders/defs.yaml:5" in causes(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_events": 2**31},
        {"max_age": timedelta(days=366)},
        {"backoff": timedelta(days=366)},
        {"minimum_interval_seconds": 0},
        {"parallel_runs": 0},
        {"max_events": 1.5},
    ],
    ids=str,
)
def test_the_same_ranges_hold_for_sensors_in_python(options: dict[str, Any]) -> None:
    @pgque_asset(queue="orders")
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=next(iter(options))):
        build_pgque_sensor([revenue], **options)


@pytest.mark.parametrize(
    "options",
    [{"lease_ttl": timedelta(days=999999999)}, {"timeout": timedelta(days=366)}, {"slices": True}],
    ids=str,
)
def test_the_same_ranges_hold_for_assets_in_python(options: dict[str, Any]) -> None:
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=next(iter(options))):
        pgque_asset(queue="orders", **options)(revenue)


def test_the_same_ranges_hold_for_the_ticker_sensor() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="minimum_interval_seconds is 0"):
        build_pgque_ticker_sensor(minimum_interval_seconds=0)


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint not null, total DOUBLE comment 'in euros, (net)'",
        "`a b` decimal(10, 2), c map<string, array<struct<x: int, y: date>>>",
        "struct<a: int, b: array<timestamp_ntz>>",
        "a: tinyint, b: struct<`c d` binary not null, e interval day to second>",
        "a varchar(10), b char(3)",
    ],
)
def test_ddl_that_spark_knows_passes(ddl: str, spark: SparkSession) -> None:
    check_ddl(ddl)
    if "varchar" not in ddl:
        parse_schema(spark, ddl)


@pytest.mark.parametrize(
    "ddl", ["a dubble", "a array<sting>", "a int, b struct<c: intt>", "a map<string, x>"]
)
def test_ddl_with_a_type_that_does_not_exist_is_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match="Spark has no type"):
        check_ddl(ddl)


def test_a_spark_session_in_two_places_is_an_error_with_its_line(project: DgProject) -> None:
    both = "{spark.master: local, spark.remote: 'sc://127.0.0.1'}"
    project.replace("pgque", "{queues: [orders]}", f"{{spark_config: {both}}}")

    with pytest.raises(Exception, match=r"pgque|defs") as raised:
        project.load()

    told = causes(raised.value)
    assert "leave out spark.master" in told
    assert "pgque/defs.yaml:2" in told
