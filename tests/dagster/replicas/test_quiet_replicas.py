"""Replicas whose tables do not change for long: the sensor finishes batches without events."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import DeltaReplicas, IcebergReplicas, PostgresReplicas
from pgque_dagster.client import Client
from tests.conftest import Server
from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import connect, rotate
from tests.support.servers.databases import empty_database

BY_FORMAT: dict[str, Callable[[str, str], Any]] = {
    "delta": lambda folder, url: DeltaReplicas(folder),
    "iceberg": lambda folder, url: IcebergReplicas(folder),
    "postgres": lambda folder, url: PostgresReplicas(url),
}


def ticks(url: str, times: int) -> None:
    with Client(url) as client:
        for _ in range(times):
            client.force_next_tick("shop")
            client.ticker()


def look(shop: Shop) -> str:
    """Evaluates the sensor, which finishes batches without events."""
    context = dg.build_sensor_context(
        instance=shop.instance,
        repository_def=shop.repository,
        resources={"pgque": shop.resources["pgque"]},
    )
    return str(shop.repository.get_sensor_def("shop_sensor").evaluate_tick(context).skip_message)


def reasons(done: dg.ExecuteInProcessResult) -> list[str]:
    """Why tables were copied in a run."""
    assert done.success
    metadata = [each.materialization.metadata for each in done.get_asset_materialization_events()]
    assert metadata
    return [str(x["pgque/copied_because"].value) for x in metadata if "pgque/copied_because" in x]


@pytest.mark.parametrize(
    "kind", ["postgres", *(pytest.param(x, marks=pytest.mark.slow) for x in ("delta", "iceberg"))]
)
def test_a_day_with_quiet_hours_copies_nothing(
    kind: str, database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with empty_database(server) as url, connect(database_url) as db:
        db.execute("create table t (id int primary key); insert into t values (1)")
        target = BY_FORMAT[kind](str(tmp_path), url)
        at_once = timedelta(microseconds=1)
        shop = Shop(database_url, spark, tmp_path, ["public.t"], target=target, max_age=at_once)
        shop.capture()
        db.execute("select pgque.set_queue_config('shop', 'rotation_period', '1 microsecond')")
        assert len(reasons(shop.run())) == 1
        for hour in range(2):
            for _ in range(2):
                ticks(database_url, 3)
                assert "its ticks had no event" in look(shop)
                rotate(db, "shop")
                db.execute("select pgque.maint()")
            if hour == 1:
                (newest,) = db.rows("select max(tick_id) from pgque.tick")[0]
                db.execute("select pgque.seek('shop', 'shop', %s)", (str(newest),))
            assert all(each.passed for each in shop.verify())
            db.execute("insert into t select max(id) + 1 from t")
            assert reasons(shop.run()) == []
        assert all(each.passed for each in shop.verify())
