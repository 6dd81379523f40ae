"""Dagster's own records in PostgreSQL, as most deployments keep them: dagster-postgres."""

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage, PostgresScheduleStorage
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.conftest import Server
from tests.dagster.support import StoringIOManager, materialize
from tests.support.databases import empty_database
from tests.support.events import publish
from tests.support.sensing import evaluate, the_request


@pytest.fixture
def instance(server: Server) -> Iterator[dg.DagsterInstance]:
    """An instance that stores runs, events and schedules in a database of the tests' server."""
    with (
        empty_database(server) as url,
        dg.instance_for_test(overrides={"storage": {"postgres": {"postgres_url": url}}}) as made,
    ):
        yield made


def test_a_batch_is_consumed_by_a_run_whose_records_dagster_postgres_keeps(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="orders", io_manager_key="io_manager")
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    publish(client, ["a", "b"])
    store = StoringIOManager()

    request = the_request(evaluate(build_pgque_sensor([revenue]), client.url, instance))
    run = materialize(
        revenue, client.url, spark, io_manager=store, tags=dict(request.tags), instance=instance
    )

    assert isinstance(instance.run_storage, PostgresRunStorage)
    assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
    assert isinstance(instance.schedule_storage, PostgresScheduleStorage)
    assert run.success
    assert store.stored == [2]
    assert instance.get_latest_materialization_event(dg.AssetKey("revenue")) is not None
    assert client.lease_info("orders", "revenue") is None
    assert client.next_batch("orders", "revenue") is None
