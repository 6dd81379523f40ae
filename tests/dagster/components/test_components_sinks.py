"""Sinks in YAML: Parquet, or a table of the queue's database."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    BatchConsumerComponent,
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
)
from pgque_dagster.client import Client
from pgque_dagster.components.sinks import ParquetSinkOptions, PostgresSinkOptions
from tests.dagster.support import SessionHolder
from tests.support.dg_project import DgProject
from tests.support.events import publish
from tests.support.queues import connect, rows


def totals(orders: DataFrame) -> DataFrame:
    """Adds up."""
    return orders.groupBy("product").sum("total").toDF("product", "total")


def attributes(**sink: object) -> dict[str, object]:
    return {
        "queue": "orders",
        "transform": "tests.dagster.components.test_components_sinks.totals",
        "name": "revenue",
        "payload": {"schema": "product string, total bigint"},
        "sink": sink,
    }


def load(**sink: object) -> BatchConsumerComponent:
    return BatchConsumerComponent.from_attributes_dict(attributes=attributes(**sink))


def consume(made: BatchConsumerComponent, url: str, spark: SparkSession) -> bool:
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(made),
        dg.Definitions(
            resources={"pgque": PgqueResource(url=url), "pyspark": SessionHolder(spark)}
        ),
    )
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process().success


def test_a_batch_is_merged_into_the_table_that_the_asset_is_named_after(
    client: Client, spark: SparkSession
) -> None:
    made = load(type="postgres", mode="add", key=["product"])
    with connect(client.url) as db:
        db.execute("create table revenue (product text primary key, total bigint)")
        for total in (1, 10):
            publish(client, [{"product": "tea", "total": total}])
            assert consume(made, client.url, spark)

        assert rows(db, "select product, total from revenue") == [("tea", 11)]


def test_the_table_may_have_a_name_of_its_own(client: Client, spark: SparkSession) -> None:
    made = BatchConsumerComponent.from_attributes_dict(
        attributes={
            **attributes(type="postgres"),
            "metadata": {"dagster/table_name": "public.sales"},
        }
    )
    publish(client, [{"product": "tea", "total": 1}])
    with connect(client.url) as db:
        db.execute("create table sales (product text, total bigint)")
        assert consume(made, client.url, spark)

        assert rows(db, "select product, total from sales") == [("tea", 1)]


def test_a_sink_without_a_type_is_parquet() -> None:
    made = load(base_dir="output")

    assert made.sink == ParquetSinkOptions(base_dir="output")


def test_a_sink_may_be_null() -> None:
    made = BatchConsumerComponent.from_attributes_dict(
        attributes={**attributes(), "sink": None, "io_manager_key": "mine"}
    )

    assert made.sink is None


def test_yaml_has_every_option_of_the_io_manager_for_postgres() -> None:
    def defaults(model: type[Any], *, without: tuple[str, ...]) -> dict[str, Any]:
        return {
            name: field.get_default(call_default_factory=True)
            for name, field in model.model_fields.items()
            if name not in without
        }

    # Its database and its session are those of the resources.
    in_python = defaults(PostgresBatchIOManager, without=("pgque", "pyspark"))

    assert defaults(PostgresSinkOptions, without=("type",)) == in_python


def test_the_io_manager_for_parquet_has_its_directory() -> None:
    definition = ParquetSinkOptions(base_dir="output").io_manager()
    session = SessionHolder(None)  # type: ignore[arg-type]

    with dg.build_resources({"manager": definition, "pyspark": session}) as resources:
        manager = resources.manager

    assert manager == ParquetBatchIOManager(base_dir="output", pyspark=session)


_RIGHT = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transform: math.sqrt
  sink:
    type: postgres
    mode: upsert
    key: [product]
"""
_WRONG = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transform: math.sqrt
  sink:
    type: postgres
    mode: merge  # wrong
    key: product  # wrong
"""


@pytest.fixture
def project(tmp_path: Path) -> DgProject:
    return DgProject(tmp_path)


def test_a_postgres_sink_passes_the_check_of_yaml(project: DgProject) -> None:
    project.write("revenue", _RIGHT)

    assert "validated successfully" in project.run("check", "yaml")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (_WRONG, {7, 8}),
        (_RIGHT.replace("mode: upsert", "base_dir: output"), {7}),
        (_RIGHT.replace("type: postgres", "type: postgers"), {5, 6}),
    ],
)
def test_what_is_wrong_in_a_sink_is_reported_with_its_line(
    project: DgProject, text: str, lines: set[int]
) -> None:
    project.write("revenue", text)

    found = project.run("check", "yaml", fails=True)

    assert project.lines_reported(found, "revenue") == lines
