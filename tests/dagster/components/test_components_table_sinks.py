"""Sinks in YAML: tables of files, and Delta and Iceberg tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster import DeltaBatchIOManager, IcebergBatchIOManager, ParquetBatchIOManager
from pgque_dagster.client import Client
from pgque_dagster.components.sinks import ParquetSinkOptions
from pgque_dagster.components.table_sinks import DeltaSinkOptions, IcebergSinkOptions
from tests.dagster.components.test_components_sinks import consume, load
from tests.support.dg_project import DgProject
from tests.support.events import publish
from tests.support.s3 import S3, s3_server


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

    assert list(tmp_path.glob("sales/revenue-*/data/**/*.parquet"))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_credentials_in_yaml_are_names_of_environment_variables(
    client: Client,
    spark: SparkSession,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    for name, value in s3.options.items():
        monkeypatch.setenv(f"OF_THE_LAKE_{name.upper()}", value)
    made = load(
        type=kind,
        **{"warehouse" if kind == "iceberg" else "base_dir": s3.url(kind)},
        storage_options={name: f"{{{{ env.OF_THE_LAKE_{name.upper()} }}}}" for name in s3.options},
    )
    publish(client, [{"product": "tea", "total": 1}])
    assert consume(made, client.url, spark)

    (stored,) = [name for name in s3.names(f"{kind}/") if name.endswith(".parquet")]
    (row,) = s3.read_parquet(stored).select(["product", "total"]).to_pylist()
    assert row == {"product": "tea", "total": 1}
    assert s3.secret not in repr(made.sink)
    assert s3.secret not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("options", "manager", "resources"),
    [
        (ParquetSinkOptions, ParquetBatchIOManager, {"pyspark"}),
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
