"""A table that is set apart in Dagster: a red check, and a run when it is due."""

import re
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import DeltaReplicas
from pgque_dagster.client import Client
from pgque_dagster.project.database import DEFAULT_DATABASE
from pgque_dagster.project.queue_report import report_queues
from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import connect
from tests.support.replicas.parts import copy_in_parts


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
    with connect(database_url) as db:
        db.execute("alter table copies.items add check (day < 'infinity')")
    return shop


def materialized(done: dg.ExecuteInProcessResult) -> list[str]:
    return [
        event.asset_key.path[-1]
        for event in done.get_asset_materialization_events()
        if event.asset_key is not None
    ]


def requested(shop: Shop) -> int:
    """How many runs the sensor requests, after a tick without events."""
    shop.tick()
    return len(shop.look().run_requests or ())


def test_a_table_that_fails_is_not_materialized_and_its_check_is_red(shop: Shop) -> None:
    with connect(shop.url) as db:
        db.execute("insert into orders values (2); insert into items values (7, 'infinity')")
        done = shop.run()
        assert done.success
        assert materialized(done) == ["orders"]
        (check,) = [each for each in done.get_asset_check_evaluations() if not each.passed]
        assert (check.asset_key.path[-1], check.check_name) == ("items", "equals_source")
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "items was refused its rows" in str(check.description)
        (compared,) = [each for each in shop.verify() if each.asset_key == check.asset_key]
        assert (compared.passed, compared.severity) == (False, dg.AssetCheckSeverity.ERROR)
        (status, detail) = db.rows(
            "select status, detail from pgque.queue_health()"
            " where check_name = 'replica:shop/public.items'"
        )[0]
        assert status == "critical"
        for told in (detail, str(compared.description)):
            assert told.count("was refused") == 1, "the reason is said once"
        assert requested(shop) == 0, "its pause is not over, and the batch has no events"
        db.execute("update items set day = null")
        assert materialized(shop.run()) == ["orders"]
        db.execute("update pgque.replica_apart set retry_at = now()")
        assert requested(shop) == 1, "a quiet queue has a run for it"
        assert sorted(materialized(shop.run())) == ["items", "orders"]
        assert requested(shop) == 0
    assert shop.rows("public.items") == [{"id": 1, "day": None}, {"id": 7, "day": None}]
    assert all(each.passed for each in shop.verify())


@pytest.mark.slow
def test_tables_that_are_copied_in_parts_show_how_far_they_are(
    database_url: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in_parts(monkeypatch, width=1)
    with connect(database_url) as db:
        db.execute(
            "create table orders (id int primary key, v text) with (fillfactor = 10);"
            "create table items (id int primary key); insert into items values (1);"
            "insert into orders select n, repeat('x', 900) from generate_series(1, 3) n"
        )
        lake = DeltaReplicas(str(tmp_path))
        shop = Shop(database_url, spark, tmp_path, target=lake, max_age=timedelta(0))
        shop.capture()
        done = shop.run()
        assert done.success
        assert materialized(done) == ["items"]
        (check,) = [
            each
            for each in done.get_asset_check_evaluations()
            if each.asset_key.path[-1] == "orders"
        ]
        assert (check.check_name, check.passed) == ("equals_source", False)
        assert check.severity == dg.AssetCheckSeverity.WARN
        assert re.fullmatch(
            "public.orders is being copied, while the other tables continue: 1 of 3 parts, 1 rows, "
            r"0 MB, \d+ rows a second, all parts will be read at [-:\d ]{16} UTC\.",
            str(check.description),
        )
        (seen,) = done.asset_observations_for_node("shop_replicas")
        copying = str(seen.metadata["pgque/copying"].value)
        assert f"{copying}." in str(check.description)
        with Client(database_url) as client:
            page = report_queues(client, ["shop"])[DEFAULT_DATABASE.queue_key("shop")]
        assert copying in str(page["pgque/what_is_wrong"])
        assert requested(shop) == 1, "a quiet queue has runs until it is copied"
        db.execute("update orders set v = 'new' where id = 2")
        runs = 1
        while "orders" not in materialized(shop.run()):
            runs += 1
        assert runs < 6
        shop.run()
    assert [row["id"] for row in shop.rows("public.orders")] == [1, 2, 3]
    assert all(each.passed for each in shop.verify())
