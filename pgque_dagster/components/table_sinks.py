"""The sinks of Delta and Iceberg tables: their IO managers in YAML."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from ..assets.lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager
from ..spark.sinks.modes import DeltaMode, SchemaEvolution
from .options import Options, option

_EVOLUTION = "fail, or add_columns to the table and have null where the DataFrame lacks one."
StorageOptions = Annotated[
    dict[str, str],
    option(
        "How to access an object store; by default, by the environment of each process.",
        {"aws_access_key_id": "{{ env.KEY_ID }}"},
    ),
]


class DeltaSinkOptions(Options):
    """Options of `DeltaBatchIOManager`."""

    type: Annotated[Literal["delta"], option("A Delta table, at <base_dir>/<asset>.")]
    base_dir: Annotated[
        str,
        option(
            "A directory that driver and executors share, or a URL of an object store.",
            "{{ context.project_root }}/output",
        ),
    ]
    mode: Annotated[
        DeltaMode,
        option("append; or, by key, upsert (one row per key) or replace (all rows of a key)."),
    ] = "append"
    key: Annotated[
        list[str], option("Columns of the key, for upsert and replace.", ["product"])
    ] = Field(default=[])
    schema_evolution: Annotated[SchemaEvolution, option(_EVOLUTION)] = "fail"
    storage_options: StorageOptions = Field(default={}, repr=False)

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Refuses a merge by a key without a key, and a key without such a merge."""
        mode, key = (cls.value_of(values, name) for name in ("mode", "key"))
        if mode in ("upsert", "replace") and not key:
            raise ValueError(f"mode is {mode}: name the columns of the key in `key`")
        if mode == "append" and isinstance(key, list) and key:
            raise ValueError("mode is append, which has no key: leave out `key`, or set mode")

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs the resource `pyspark`."""

        @dg.io_manager(required_resource_keys={"pyspark"})
        def delta(context: dg.InitResourceContext) -> DeltaBatchIOManager:
            return DeltaBatchIOManager(
                pyspark=context.resources.pyspark,
                base_dir=self.base_dir,
                mode=self.mode,
                key=self.key,
                schema_evolution=self.schema_evolution,
                storage_options=self.storage_options,
            )

        return delta


class IcebergSinkOptions(Options):
    """Options of `IcebergBatchIOManager`."""

    type: Annotated[
        Literal["iceberg"],
        option("An Iceberg table; its catalog is in the queue's database, or another one."),
    ]
    warehouse: Annotated[
        str,
        option(
            "Where new tables are created: a directory, or a URL of an object store.",
            "{{ context.project_root }}/warehouse",
        ),
    ]
    namespace: Annotated[str, option("The namespace of the tables.")] = "pgque"
    catalog: Annotated[
        dict[str, str],
        option("Properties of another catalog, as pyiceberg takes them.", {"type": "rest"}),
    ] = Field(default={})
    catalog_schema: Annotated[str, option("The schema of the catalog in the queue's database.")] = (
        "iceberg_catalog"
    )
    schema_evolution: Annotated[SchemaEvolution, option(_EVOLUTION)] = "fail"
    storage_options: StorageOptions = Field(default={}, repr=False)

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs `pgque` and `pyspark`."""

        @dg.io_manager(required_resource_keys={"pgque", "pyspark"})
        def iceberg(context: dg.InitResourceContext) -> IcebergBatchIOManager:
            return IcebergBatchIOManager(
                pgque=context.resources.pgque,
                pyspark=context.resources.pyspark,
                warehouse=self.warehouse,
                namespace=self.namespace,
                catalog=self.catalog,
                catalog_schema=self.catalog_schema,
                schema_evolution=self.schema_evolution,
                storage_options=self.storage_options,
            )

        return iceberg
