"""Sinks in YAML: Delta and Iceberg tables."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster import DeltaBatchIOManager, IcebergBatchIOManager
from pgque_dagster.client import Client
from pgque_dagster.components.table_sinks import DeltaSinkOptions, IcebergSinkOptions
from tests.dagster.components.test_components_sinks import consume, load
from tests.support.dg_project import DgProject
from tests.support.events import publish


def test_a_batch_is_stored_in_a_delta_table(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    made = load(type="delta", base_dir=str(tmp_path), mode="upsert", key=["product"])
    for total in (1, 10):
        publish(client, [{"product": "tea", "total": total}])
        assert consume(made, client.url, spark)

    (row,) = DeltaTable(str(tmp_path / "revenue")).to_pyarrow_table().to_pylist()
    assert (row["product"], row["total"]) == ("tea", 10)


def test_a_batch_is_stored_in_an_iceberg_table(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    made = load(type="iceberg", warehouse=str(tmp_path), namespace="sales")
    publish(client, [{"product": "tea", "total": 1}])
    assert consume(made, client.url, spark)

    assert list((tmp_path / "sales" / "revenue" / "data").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("options", "manager", "resources"),
    [
        (DeltaSinkOptions, DeltaBatchIOManager, {"pyspark"}),
        (IcebergSinkOptions, IcebergBatchIOManager, {"pyspark", "pgque"}),
    ],
)
def test_yaml_has_every_option_of_the_io_manager(
    options: type[Any], manager: type[Any], resources: set[str]
) -> None:
    def defaults(model: type[Any], without: set[str]) -> dict[str, Any]:
        return {
            name: field.get_default(call_default_factory=True)
            for name, field in model.model_fields.items()
            if name not in without
        }

    assert defaults(options, {"type"}) == defaults(manager, resources)


_DELTA = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transform: math.sqrt
  sink:
    type: delta
    base_dir: output
    schema_evolution: add_columns
"""
_ICEBERG = """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transform: math.sqrt
  sink:
    type: iceberg
    warehouse: s3://bucket/warehouse
    catalog:
      type: rest
"""


@pytest.mark.parametrize("text", [_DELTA, _ICEBERG])
def test_a_table_sink_passes_the_check_of_yaml(tmp_path: Path, text: str) -> None:
    project = DgProject(tmp_path)
    project.write("revenue", text)

    assert "validated successfully" in project.run("check", "yaml")


def test_what_is_wrong_in_a_table_sink_is_reported_with_its_line(tmp_path: Path) -> None:
    project = DgProject(tmp_path)
    project.write("revenue", _DELTA.replace("add_columns", "guess"))

    found = project.run("check", "yaml", fails=True)

    assert project.lines_reported(found, "revenue") == {8}
