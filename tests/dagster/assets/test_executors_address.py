"""How executors find the database: by the URL, or by a variable or file that holds it."""

from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueComponent, PgqueResource, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.spark import DatabaseAddress
from pgque_dagster.spark import batch as batch_module
from tests.dagster.support import materialize
from tests.support.events import make_queue, publish


@pytest.fixture(autouse=True)
def _executors_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)


def consume(
    url: str, spark: SparkSession, **executors: str
) -> tuple[dg.ExecuteInProcessResult, list[DatabaseAddress]]:
    """Has executors count a batch; returns the address that they were given."""
    seen = []

    @pgque_asset(queue="orders", consumer="revenue")
    def count(batch: SparkBatch) -> int:
        seen.append(batch_module.attempt_of(batch).address)
        return batch.events().count()

    with Client(url) as client:
        make_queue(client)
        publish(client, ["a", "b"])
    resource = PgqueResource(url=url, **executors)
    return materialize(count, url, spark, resources={"pgque": resource}), seen


def test_executors_read_the_url_where_the_resource_says(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(database_url)

    result, seen = consume(database_url, spark, executors_url_file=str(tmp_path / "url"))

    assert result.output_for_node("count") == 2
    assert database_url not in str(seen[0].options())


def test_executors_without_what_the_resource_says_fail_the_run_by_its_name(
    database_url: str, spark: SparkSession
) -> None:
    result, _ = consume(database_url, spark, executors_url_env="NO_SUCH_SECRET_URL")

    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert "NO_SUCH_SECRET_URL is not set" in str(failure.step_failure_data.error)


def test_a_resource_that_does_not_say_tells_them_the_url(
    database_url: str, spark: SparkSession
) -> None:
    result, seen = consume(database_url, spark)

    assert result.output_for_node("count") == 2
    assert seen == [DatabaseAddress(database_url)]


def test_a_component_says_it_as_well() -> None:
    component = PgqueComponent.from_attributes_dict(
        attributes={"executors_url_env": "SHOP_SECRET_URL", "executors_url_file": "/run/url"}
    )

    resource = dg.build_defs_for_component(component).resources["pgque"]  # type: ignore[index]

    assert (resource.executors_url_env, resource.executors_url_file) == (
        "SHOP_SECRET_URL",
        "/run/url",
    )
