"""A table that stands apart in Dagster: a red check, and a run when it is due."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from tests.dagster.replicas.test_table_replicas import Shop
from tests.support.queues import connect


@pytest.fixture
def shop(database_url: str, spark: SparkSession, tmp_path: Path) -> Shop:
    with connect(database_url) as db:
        db.execute(
            "create table orders (id int primary key, day date);"
            "create table items (id int primary key, day date);"
            "insert into orders values (1); insert into items values (1)"
        )
    shop = Shop(database_url, spark, tmp_path, max_age=timedelta(0))
    shop.capture()
    assert shop.run().success
    return shop


def materialized(done: dg.ExecuteInProcessResult) -> list[str]:
    return [
        event.asset_key.path[-1]
        for event in done.get_asset_materialization_events()
        if event.asset_key is not None
    ]


def requested(shop: Shop) -> int:
    """How many runs the sensor requests, after a tick without events."""
    with Client(shop.url) as client:
        client.force_next_tick("shop")
        client.ticker()
    context = dg.build_sensor_context(
        instance=shop.instance,
        repository_def=shop.repository,
        resources={"pgque": shop.resources["pgque"]},
    )
    found = shop.repository.get_sensor_def("shop_sensor").evaluate_tick(context)
    return len(found.run_requests or ())


def test_a_table_that_fails_is_not_materialized_and_its_check_is_red(shop: Shop) -> None:
    with connect(shop.url) as db:
        db.execute("insert into orders values (2); insert into items values (7, 'infinity')")
        done = shop.run()
        assert done.success
        assert materialized(done) == ["orders"]
        (check,) = [each for each in done.get_asset_check_evaluations() if not each.passed]
        assert (check.asset_key.path[-1], check.check_name) == ("items", "equals_source")
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "public.items with id 7" in str(check.description)
        assert "infinity in column day" in str(check.description)
        (status, detail) = db.rows(
            "select status, detail from pgque.queue_health()"
            " where check_name = 'replica:shop/public.items'"
        )[0]
        assert (status, "with id 7" in detail) == ("critical", True)

        (compared,) = [each for each in shop.verify() if each.asset_key == check.asset_key]
        assert (compared.passed, compared.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert requested(shop) == 0, "its pause is not over, and the batch has no events"
        db.execute("update items set day = null")
        assert materialized(shop.run()) == ["orders"]
        db.execute("update pgque.replica_apart set retry_at = now()")
        assert requested(shop) == 1, "a quiet queue has a run for it"
        assert sorted(materialized(shop.run())) == ["items", "orders"]
        assert requested(shop) == 0
    assert shop.rows("public.items") == [{"id": 1, "day": None}, {"id": 7, "day": None}]
    assert all(each.passed for each in shop.verify())


def test_a_table_that_stands_apart_is_repaired_by_the_job(shop: Shop) -> None:
    with connect(shop.url) as db:
        db.execute("insert into items values (7, 'infinity')")
        assert shop.run().success
        db.execute("update items set day = null")
    repair = shop.repository.get_job("shop_repair").execute_in_process(
        instance=shop.instance,
        run_config={"ops": {"shop_repair_tables": {"config": {"tables": ["public.items"]}}}},
    )
    assert repair.success
    assert sorted(materialized(shop.run())) == ["items", "orders"]
    assert all(each.passed for each in shop.verify())
