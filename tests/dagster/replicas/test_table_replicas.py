"""Replicas in Dagster: captured by a sensor, followed by runs, and verified by checks."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster import (
    DeltaReplicas,
    IcebergReplicas,
    PgqueResource,
    PostgresReplicas,
    build_table_replicas,
    queue_key,
)
from pgque_dagster.client import Client, ConnectionFailed
from tests.dagster.support import SessionHolder
from tests.support.lakes import iceberg_catalog
from tests.support.logins import as_login
from tests.support.queues import connect

TABLES = ["public.orders", "public.items"]


class Shop:
    """A project that replicates two tables, or others."""

    def __init__(
        self,
        url: str,
        spark: SparkSession,
        folder: Path,
        tables: Sequence[str] = TABLES,
        name: str = "shop",
        **options: Any,
    ) -> None:
        self.name, self.queue = name, options.get("queue", name)
        self.url, self.folder = url, folder
        self.resources = {"pgque": PgqueResource(url=url), "pyspark": SessionHolder(spark)}
        self.target = options.pop("target", DeltaReplicas(str(folder)))
        self.is_iceberg = isinstance(self.target, IcebergReplicas)
        self.defs = build_table_replicas(name, tables, target=self.target, **options)
        self.instance = dg.DagsterInstance.ephemeral()
        bound = dg.Definitions.merge(self.defs, dg.Definitions(resources=self.resources))
        self.repository = bound.get_repository_def()

    def capture(self) -> str:
        context = dg.build_sensor_context(
            instance=self.instance, resources={"pgque": self.resources["pgque"]}
        )
        sensor = self.repository.get_sensor_def(f"{self.name}_capture")
        result = sensor.evaluate_tick(context)
        return str(result.skip_message)

    def run(self) -> dg.ExecuteInProcessResult:
        with Client(self.url) as client:
            client.force_next_tick(self.queue)
            client.ticker()
        job = self.repository.get_implicit_global_asset_job_def()
        (replicas,) = [x for x in self.defs.assets or () if is_replica(x, self.name)]
        return job.execute_in_process(
            instance=self.instance, asset_selection=list(replicas.keys), raise_on_error=False
        )

    def verify(self, config: dict[str, Any] | None = None) -> list[dg.AssetCheckEvaluation]:
        job = self.repository.get_job(f"{self.name}_verify")
        done = job.execute_in_process(instance=self.instance, run_config=config)
        return done.get_asset_check_evaluations()

    def rows(self, table: str) -> list[dict[str, Any]]:
        if self.is_iceberg:
            found = iceberg_catalog(self.url).load_table(table).scan().to_arrow()
        else:
            found = DeltaTable(str(self.folder / table.replace(".", "/"))).to_pyarrow_table()
        return sorted(found.to_pylist(), key=repr)

    def files(self, table: str) -> int:
        if self.is_iceberg:
            return len(list(iceberg_catalog(self.url).load_table(table).scan().plan_files()))
        return len(DeltaTable(str(self.folder / table.replace(".", "/"))).file_uris())


def is_replica(asset: Any, name: str) -> bool:
    return isinstance(asset, dg.AssetsDefinition) and asset.op.name == f"{name}_replicas"


@pytest.fixture
def target() -> Callable[[str], Any]:
    """Where the replicas are, given a folder; tests may have another one."""
    return DeltaReplicas


lakes = pytest.mark.parametrize("target", [DeltaReplicas, IcebergReplicas])


@pytest.fixture
def shop(
    database_url: str, spark: SparkSession, tmp_path: Path, target: Callable[[str], Any]
) -> Shop:
    with connect(database_url) as db:
        db.execute(
            "create table orders (id int primary key, total numeric(9,2));"
            "comment on column orders.total is 'in euros';"
            "create table items (id int primary key, name text);"
            "insert into orders values (1, 9.5); insert into items values (1, 'tea')"
        )
    return Shop(database_url, spark, tmp_path, target=target(str(tmp_path)))


@lakes
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


def test_tables_that_their_owner_captured_are_copied_before_any_change(
    shop: Shop, spark: SparkSession
) -> None:
    login = as_login(shop.url, "pgque_reader", "pgque_writer")
    reading = Shop(login, spark, shop.folder)
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


def test_a_run_of_a_batch_compares_no_table(shop: Shop) -> None:
    shop.capture()
    with Client(shop.url) as client:
        client.force_next_tick("shop")
        client.ticker()
    sensor = shop.repository.get_sensor_def("shop_sensor")
    context = dg.build_sensor_context(
        instance=shop.instance,
        repository_def=shop.repository,
        resources={"pgque": shop.resources["pgque"]},
    )
    (request,) = sensor.evaluate_tick(context).run_requests or ()
    checks = request.asset_check_keys
    job = shop.repository.get_job(sensor.job_name).get_subset(
        asset_selection=set(request.asset_selection),
        asset_check_selection=None if checks is None else set(checks),
    )
    assert [node.name for node in job.nodes] == ["shop_replicas"]


def test_tables_are_replicated_into_a_schema_of_postgres(
    database_url: str, spark: SparkSession, tmp_path: Path, shop: Shop
) -> None:
    shop = Shop(database_url, spark, tmp_path, target=PostgresReplicas(schema="copies"))
    shop.capture()
    first = shop.run()
    assert first.success
    (orders, *_) = first.get_asset_materialization_events()
    assert orders.materialization.metadata["dagster/table_name"].value.endswith(".copies.orders")
    with connect(shop.url) as db:
        db.execute("insert into orders values (2, 1); delete from items")
        assert shop.run().success
        assert db.execute("select * from copies.orders").fetchall() == [
            (1, Decimal("9.50")),
            (2, Decimal("1.00")),
        ]
        assert all(each.passed for each in shop.verify())
        db.execute("update copies.orders set total = 3 where id = 1")
    (failed,) = [each for each in shop.verify() if not each.passed]
    assert "different {'id': 1}" in str(failed.description)


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

    assert maintain.execute_in_process(instance=shop.instance).success

    assert shop.files("public.orders") == 1
    assert shop.run().success
    assert all(each.passed for each in shop.verify())


def test_a_difference_fails_the_check_and_its_job_mends_it(shop: Shop) -> None:
    shop.capture()
    shop.run()
    with connect(shop.url) as db:
        db.execute("set session_replication_role = replica")
        db.execute("update items set name = 'salt'")
    (failed,) = [each for each in shop.verify() if not each.passed]
    assert failed.asset_key.path[-1] == "items"
    assert "different {'id': 1}" in str(failed.description)
    assert "examples" not in failed.metadata, (
        "values are nobody's business unless they are asked for"
    )
    config = {"ops": {"shop__public__items_equals_source": {"config": {"show_rows": True}}}}
    (failed,) = [each for each in shop.verify(config) if not each.passed]
    (example,) = failed.metadata["examples"].records
    assert "salt" in str(example.data["table"])
    assert "tea" in str(example.data["replica"])
    repair = shop.repository.get_job("shop_repair").execute_in_process(
        instance=shop.instance,
        run_config={"ops": {"shop_repair_tables": {"config": {"tables": ["public.items"]}}}},
    )
    assert repair.success
    (done,) = [
        event.materialization
        for event in shop.run().get_asset_materialization_events()
        if event.asset_key == failed.asset_key
    ]
    assert (done.metadata["pgque/rows"].value, done.metadata["dagster/row_count"].value) == (1, 1)
    assert all(each.passed for each in shop.verify())
    assert shop.rows("public.items") == [{"id": 1, "name": "salt"}]


def test_a_run_that_fails_between_two_tables_is_done_again_whole(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.spark.replicas.delta import DeltaReplica

    shop.capture()
    shop.run()
    with connect(shop.url) as db:
        db.execute("update orders set total = 7; update items set name = 'x'")
    merge = DeltaReplica.merge

    def failing(self: DeltaReplica, *args: Any) -> Any:
        if self.source.name == "public.items":
            raise ConnectionFailed("the source is gone")
        return merge(self, *args)

    monkeypatch.setattr(DeltaReplica, "merge", failing)
    assert not shop.run().success
    monkeypatch.setattr(DeltaReplica, "merge", merge)
    assert shop.run().success
    assert all(each.passed for each in shop.verify())
    assert shop.rows("public.items") == [{"id": 1, "name": "x"}]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "no list"),
        (["orders"], "no schema and table"),
        (["public.*"], "TableReplicaComponent"),
        (["public.orders", "public.orders"], "twice"),
        (['public."a.b"'], "a folder cannot have"),
        (["""public."a""b" """.strip()], "a folder cannot have"),
        (["public.a.b"], "no schema and table"),
    ],
)
def test_names_that_mean_no_table_are_refused(tables: list[str], words: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        build_table_replicas("shop", tables, target=DeltaReplicas("lake"))


def test_a_folder_in_place_of_a_target_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"'lake' must be DeltaReplicas"):
        build_table_replicas("shop", ["public.orders"], target="lake")  # type: ignore[arg-type]


ODD = ['public."Big One"', 'public."a.b"', """public."it's ""x" """.strip()]


@pytest.mark.parametrize(
    ("names", "target"),
    [
        (ODD[:1], DeltaReplicas),
        (ODD[:1], IcebergReplicas),
        (ODD, lambda folder: PostgresReplicas(schema="copies")),
    ],
)
def test_tables_with_names_in_quotes_are_replicated(
    database_url: str,
    spark: SparkSession,
    tmp_path: Path,
    names: list[str],
    target: Callable[[str], Any],
) -> None:
    with connect(database_url) as db:
        for name in names:
            db.execute(f"create table {name} (id int primary key)".encode())
        shop = Shop(database_url, spark, tmp_path, names, target=target(str(tmp_path)))
        assert "captured" in shop.capture()
        assert shop.run().success
        for name in names:
            db.execute(f"insert into {name} values (1)".encode())
        assert shop.run().success
        evaluations = shop.verify()
        assert len(evaluations) == len(names)
        assert all(each.passed for each in evaluations), evaluations


def test_a_table_that_cannot_be_replicated_is_told_and_stops_no_other(shop: Shop) -> None:
    with connect(shop.url) as db:
        db.execute("alter table orders drop constraint orders_pkey")
        assert "public.orders has no key" in shop.capture()
        db.execute("alter table items drop constraint items_pkey")
        told = shop.capture()
        assert "public.orders has no key" in told
        assert "public.items has no key" in told
        query = "select table_name from pgque.captured_tables('shop')"
        assert db.execute(query).fetchall() == [("public.items",)]


def test_a_table_that_comes_or_goes_under_a_wildcard_fails_a_check(database_url: str) -> None:
    key = dg.AssetCheckKey(queue_key("shop"), "wildcard_tables")
    replicas = build_table_replicas(
        "shop", ["s.a"], target=PostgresReplicas(schema="copies"), max_lag=None, names=["s.*"]
    )
    (check,) = [each for each in replicas.asset_checks or () if key in each.check_keys]
    job = dg.define_asset_job("check", dg.AssetSelection.checks(check))
    assets = [dg.AssetSpec(queue_key("shop"))]
    resources = {"pgque": PgqueResource(url=database_url)}
    definitions = dg.Definitions(assets, asset_checks=[check], jobs=[job], resources=resources)

    def found() -> tuple[bool, str]:
        done = definitions.resolve_job_def("check").execute_in_process()
        (evaluation,) = done.get_asset_check_evaluations()
        return evaluation.passed, str(evaluation.description)

    with connect(database_url) as db:
        db.execute("create schema s; create table s.a (id int primary key)")
        assert found() == (True, "s.* stands for the tables that are replicated.")
        db.execute("create table s.b (id int primary key); create table s.c (id int)")
        passed, told = found()
        assert not passed
        assert "s.b is not replicated. Run dg utils refresh-defs-state" in told
        assert "s.c cannot be replicated: table s.c has no key" in told
        db.execute("alter table s.a set schema public; drop table s.c")
        assert "s.a has that name no longer" in found()[1]


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
        failed = kept.run()
    (error,) = [event.step_failure_data.error for event in failed.get_step_failure_events()]
    assert "changes of public.items, which is captured and not among" in str(error)
    assert "a queue of its own" in str(error)
