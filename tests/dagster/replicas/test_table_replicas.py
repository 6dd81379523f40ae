"""Replicas in Dagster: captured by a sensor, followed by runs, and verified by checks."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import (
    DeltaReplicas,
    IcebergReplicas,
    PgqueResource,
    PostgresReplicas,
    build_table_replicas,
    queue_key,
)
from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay
from tests.dagster.replicas.shop import TABLES, Shop, delta, lakes
from tests.support.queues.metrics import health
from tests.support.queues.sql import connect
from tests.support.servers.logins import as_login


@pytest.mark.parametrize(
    "target", [DeltaReplicas, IcebergReplicas, pytest.param(lambda folder: None, id="postgres")]
)
def test_tables_are_captured_copied_followed_and_verified(shop: Shop) -> None:
    assert "captured public.orders, public.items" in shop.capture()
    assert "all tables are captured" in shop.capture()
    first = shop.run()
    assert first.success
    metadata = {
        event.asset_key.path[-1]: event.materialization.metadata
        for event in first.get_asset_materialization_events()
        if event.asset_key is not None
    }
    assert metadata["orders"]["dagster/row_count"].value == 1
    (total,) = [
        column
        for column in metadata["orders"]["dagster/column_schema"].value.columns
        if column.name == "total"
    ]
    assert (total.type, total.description) == ("numeric(9,2)", "in euros")
    with connect(shop.url) as db:
        db.execute("insert into orders values (2, 1); delete from items")
    assert shop.run().success
    assert [row["id"] for row in shop.rows("public.orders")] == [1, 2]
    assert shop.rows("public.items") == []
    evaluations = shop.verify()
    assert {each.check_name for each in evaluations} == {"equals_source"}
    assert all(each.passed for each in evaluations), evaluations


@delta
def test_tables_that_their_owner_captured_are_copied_before_any_change(
    shop: Shop, spark: SparkSession
) -> None:
    login = as_login(shop.url, "pgque_reader", "pgque_writer")
    reading = Shop(login, spark, shop.folder, target=shop.target)
    reading.url = shop.url  # An administrator ticks.
    with connect(shop.url) as db:
        db.execute("select pgque.create_queue('shop')")
        db.execute("grant select on orders, items to public")
        advice = "Let the table's owner run: select pgque.capture('public.{}', 'shop');"
        told = reading.capture()
        for table in ("orders", "items"):
            assert advice.format(table) in told
            db.execute("select pgque.capture(%s::regclass, 'shop')", (table,))

    assert reading.capture() == "the next batch copies public.orders, public.items"
    assert "all tables are captured" in reading.capture()
    assert reading.run().success

    assert reading.rows("public.orders") and reading.rows("public.items")
    assert "all tables are captured" in reading.capture()


def test_tables_are_captured_from_the_wal_once_there_is_a_relay(
    shop: Shop, spark: SparkSession
) -> None:
    wal = Shop(shop.url, spark, shop.folder, capture="wal")
    assert "capture is wal, and queue shop has no relay" in wal.capture()
    begin_relay(shop.url, "shop")
    assert "Set capture to wal" in shop.capture()
    assert "captured public.orders, public.items" in wal.capture()
    with connect(shop.url) as db, Relay.of(shop.url, "shop") as relay:
        assert not db.rows("select from pg_trigger where tgrelid = 'orders'::regclass")
        relay.tick()
    assert wal.run().success
    with connect(shop.url) as db, Relay.of(shop.url, "shop") as relay:
        db.execute("insert into orders values (2, 1); update items set id = 3")
        relay.tick()
    assert wal.run().success
    assert [row["id"] for row in wal.rows("public.orders")] == [1, 2]
    assert wal.rows("public.items") == [{"id": 3, "name": "tea"}]
    evaluations = wal.verify()
    assert len(evaluations) == 2
    assert all(each.passed for each in evaluations), evaluations


def test_a_copy_of_the_project_captures_no_tables_for_the_replicas_of_another(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.capture()
    with connect(shop.url) as db:
        db.execute("create table public.more (id int primary key)")
        laptop = Shop(shop.url, spark, tmp_path, [*TABLES, "public.more"])
        laptop.resources["pgque"] = PgqueResource(url=shop.url, deployment="laptop")

        told = laptop.capture()

        assert 'this is deployment "laptop"' in told
        captured = db.rows("select table_name from pgque.captured_tables('shop') order by 1")
        assert captured == [("public.items",), ("public.orders",)]


def test_changes_wait_for_others_until_the_first_has_waited_max_age(
    shop: Shop, spark: SparkSession
) -> None:
    waiting, at_once = (
        Shop(shop.url, spark, shop.folder, target=shop.target, max_age=max_age, max_lag=None)
        for max_age in (timedelta(hours=1), timedelta(0))
    )
    waiting.capture()
    with connect(shop.url) as db:
        db.execute("insert into orders select i, 1 from generate_series(2, 99) i")

    waiting.tick()
    assert "when the oldest has waited max_age=1:00:00" in str(waiting.look().skip_message)
    assert len(at_once.look().run_requests or ()) == 1
    sensor = shop.repository.get_sensor_def("shop_sensor")
    assert "min_events=10000000, max_age=0:01:00" in str(sensor.description)


def test_a_lag_that_max_age_alone_makes_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="make max_lag longer"):
        build_table_replicas(
            "shop",
            TABLES,
            target=DeltaReplicas("lake"),
            max_age=timedelta(minutes=5),
        )


def test_a_run_of_a_batch_compares_no_table(shop: Shop, spark: SparkSession) -> None:
    shop = Shop(shop.url, spark, shop.folder, target=shop.target, max_age=timedelta(0))
    shop.capture()
    shop.tick()
    (request,) = shop.look().run_requests or ()
    checks = request.asset_check_keys
    job = shop.repository.get_job(
        shop.repository.get_sensor_def("shop_sensor").job_name
    ).get_subset(
        asset_selection=set(request.asset_selection),
        asset_check_selection=None if checks is None else set(checks),
    )
    assert [node.name for node in job.nodes] == ["shop_replicas"]


@pytest.mark.slow
@lakes
def test_small_files_of_replicas_are_united_by_their_job(shop: Shop) -> None:
    maintain = shop.repository.get_job("shop_maintain")
    assert maintain.execute_in_process(instance=shop.instance).success
    shop.capture()
    for number in range(2, 5):
        shop.run()
        with connect(shop.url) as db:
            db.execute(b"insert into orders values (%d, 1)" % number)
    assert shop.files("public.orders") == 3

    done = maintain.execute_in_process(instance=shop.instance)
    assert done.success
    observed = [each.asset_observation_data for each in done.get_asset_observation_events()]
    (orders,) = [
        each.asset_observation.metadata
        for each in observed
        if each.asset_observation.asset_key.path[-1] == "orders"
    ]
    counts = {name: value.value for name, value in orders.items()}
    assert counts == {
        "pgque/stored_files": 1,
        "pgque/stored_rows": 3,
        "pgque/stored_deleted_rows": 0,
    }

    assert shop.files("public.orders") == 1
    assert shop.run().success
    assert all(each.passed for each in shop.verify())


@pytest.mark.slow
@delta
def test_replicas_for_two_targets_share_a_queue_and_the_capture(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    target = PostgresReplicas(schema="copies")
    second = Shop(
        shop.url,
        spark,
        tmp_path,
        [*TABLES, "public.more"],
        target=target,
        name="second",
        queue="shop",
    )
    both = dg.Definitions.merge(shop.defs, second.defs, dg.Definitions(resources=shop.resources))
    graph = both.resolve_asset_graph()
    replica = graph.get(dg.AssetKey(["second", "public", "orders"]))
    source = dg.AssetKey(["shop", "source", "public", "orders_source"])
    assert replica.parent_keys == {source, queue_key("shop")}
    with connect(shop.url) as db:
        db.execute("create table more (id int primary key)")
        shop.capture()
        assert shop.run().success
        count = "select count(*) from pg_trigger where tgrelid = 'orders'::regclass"
        triggers = db.rows(count)
        assert "captured public.more" in second.capture()
        assert "all tables are captured" in second.capture()
        assert db.rows(count) == triggers
        db.execute("insert into orders values (2, 1); insert into more values (1)")
        followed = shop.run()
        assert followed.success, "changes of a table of another target are none of its business"
        for each in followed.get_asset_materialization_events():
            assert "pgque/copied_because" not in each.materialization.metadata
        assert second.run().success
        assert db.rows("select id from copies.orders order by 1") == [(1,), (2,)]
        assert db.rows("select id from copies.more") == [(1,)]
    for each in (shop, second):
        assert all(found.passed for found in each.verify())


def test_replicas_of_a_queue_that_somebody_else_consumes_are_kept(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    with connect(shop.url) as db:
        db.execute("select pgque.create_queue('events'); select pgque.capture('orders', 'events')")
        db.execute("select pgque.register_consumer('events', 'somebody')")
        kept = Shop(
            shop.url, spark, tmp_path, ["public.orders"], target=shop.target, queue="events"
        )
        assert "the next batch copies public.orders" in kept.capture()
        assert kept.run().success
        assert kept.rows("public.orders")
        db.execute("select pgque.capture('items', 'events'); insert into items values (2, 'salt')")
        assert kept.run().success, "what somebody else reads is passed over"
        status, detail = health(db, "events")["captured_table:public.items"]
    assert status == "critical"
    assert "none of the queue's replicas has it, and its changes are skipped" in detail


def test_a_table_that_is_taken_out_is_uncaptured_and_copied_when_it_is_put_back(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.capture()
    assert shop.run().success
    with connect(shop.url) as db:
        # The run comes before the sensor has captured less.
        without = Shop(shop.url, spark, tmp_path, ["public.orders"], target=shop.target)
        db.execute("insert into items values (2, 'salt'); insert into orders values (2, 1)")
        assert without.run().success
        assert [row["id"] for row in without.rows("public.orders")] == [1, 2]
        assert len(without.rows("public.items")) == 1, "its replica stays"
        status, detail = health(db, "shop")["captured_table:public.items"]
        assert status == "warning"
        assert "select pgque.uncapture('public.items', 'shop')" in detail

        assert "ended the capture of public.items" in without.capture()
        assert "all tables are captured" in without.capture()
        assert db.rows("select table_name from pgque.captured_tables('shop')") == [
            ("public.orders",)
        ]
        assert db.rows("select table_name from pgque.replicas('shop')") == [("public.orders",)]
        db.execute("delete from items")
        assert "captured public.items" in shop.capture()
        assert shop.run().success
    assert shop.rows("public.items") == []


@delta
def test_a_table_that_is_taken_out_stays_captured_for_others_and_without_the_right(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    without = Shop(shop.url, spark, tmp_path, ["public.orders"], target=shop.target)
    login = as_login(shop.url, "pgque_reader", "pgque_writer")
    unable = Shop(login, spark, tmp_path, ["public.orders"], target=shop.target)
    unable.url = shop.url  # An administrator ticks.
    shop.capture()
    with connect(shop.url) as db:
        db.execute("grant select on orders to public")
        db.execute("select pgque.register_consumer('shop', 'somebody')")
        assert "all tables are captured" in without.capture(), "somebody reads the changes"
        db.execute("select pgque.unregister_consumer('shop', 'somebody')")
        db.execute("select pgque.register_consumer('shop', 'copies')")
        db.execute("select pgque.name_replicas('shop', 'copies', '{public.items}')")
        assert "all tables are captured" in without.capture(), "another target has it"
        db.execute("select pgque.name_replicas('shop', 'copies', '{public.orders}')")
        told = unable.capture()
        assert "public.items was removed from the tables of shop" in told
        assert "Let the table's owner run: select pgque.uncapture('public.items', 'shop')" in told
        db.execute("insert into items values (2, 'salt')")
        assert unable.run().success
        states = "select table_name from pgque.replicas('shop') where left_at is not null"
        assert db.rows(f"{states} and consumer_name = 'shop'") == [("public.items",)]
        assert "ended the capture of public.items" in without.capture()
