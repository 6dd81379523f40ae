"""Which tables are replicated: names in quotes, wildcards, and those that mean no table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import connect


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "no list"),
        (["orders"], "not a schema and a table"),
        (["public.*"], "TableReplicaComponent"),
        (["public.orders", "public.orders"], "twice"),
        (['public."a.b"'], "a folder cannot have"),
        (["""public."a""b" """.strip()], "a folder cannot have"),
        (["public.a.b"], "not a schema and a table"),
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
        pytest.param(ODD[:1], DeltaReplicas, marks=pytest.mark.slow),
        pytest.param(ODD[:1], IcebergReplicas, marks=pytest.mark.slow),
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
        assert found() == (True, "s.* matches the replicated tables.")
        db.execute("create table s.b (id int primary key); create table s.c (id int)")
        passed, told = found()
        assert not passed
        assert "s.b is not replicated. Run dg utils refresh-defs-state" in told
        assert "s.c cannot be replicated: table s.c has no key" in told
        db.execute("alter table s.a set schema public; drop table s.c")
        assert "s.a no longer has such a name" in found()[1]
