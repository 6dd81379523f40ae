"""The sinks of a consumer in YAML: the options of its IO manager."""

from typing import Annotated, ClassVar, Literal, Self, get_args

import dagster as dg
from pydantic import model_validator

from ..assets.io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from ..assets.lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager
from ..spark.sinks.modes import TableMode, check_mode
from ..spark.sinks.postgres.merge import Mode
from .options import Options, mirror, option

# What IO managers get from the project instead of YAML.
_RESOURCES = ["pgque", "pyspark"]


class SinkOptions(Options):
    """The options of the IO manager in `builder`."""

    builder: ClassVar[type[dg.ConfigurableIOManager]]
    # The values of its option `mode`, if it has one; all but the first need a key.
    modes: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.modes:
            given = self.arguments()
            check_mode(given["mode"], given["key"], self.modes)
        return self

    def io_manager(self, database: str) -> dg.IOManagerDefinition:
        """Returns the IO manager with these options, and those of `_RESOURCES` that it needs."""
        options = self.arguments()
        needed = set(_RESOURCES) & set(self.builder.model_fields)
        keys = {name: database if name == "pgque" else name for name in needed}

        @dg.io_manager(required_resource_keys=set(keys.values()))
        def sink(context: dg.InitResourceContext) -> dg.ConfigurableIOManager:
            resources = {name: getattr(context.resources, key) for name, key in keys.items()}
            return self.builder(**resources, **options)

        return sink


class ParquetSinkOptions(SinkOptions, mirror(ParquetBatchIOManager, leave_out=_RESOURCES)):
    """Options of `ParquetBatchIOManager`."""

    type: Annotated[Literal["parquet"], option("One directory per batch, replaced as a whole.")] = (
        "parquet"
    )


class PostgresSinkOptions(SinkOptions, mirror(PostgresBatchIOManager, leave_out=_RESOURCES)):
    """Options of `PostgresBatchIOManager`; its database is the queue's, or the default one."""

    modes = get_args(Mode)
    type: Annotated[
        Literal["postgres"],
        option("A table of the queue's database, merged in the transaction of the ack."),
    ]


class DeltaSinkOptions(SinkOptions, mirror(DeltaBatchIOManager, leave_out=_RESOURCES)):
    """Options of `DeltaBatchIOManager`."""

    modes = get_args(TableMode)
    type: Annotated[Literal["delta"], option("A Delta table, at <base_dir>/<asset>.")]


class IcebergSinkOptions(SinkOptions, mirror(IcebergBatchIOManager, leave_out=_RESOURCES)):
    """Options of `IcebergBatchIOManager`."""

    modes = get_args(TableMode)
    type: Annotated[
        Literal["iceberg"],
        option("An Iceberg table; its catalog is in the queue's database, or elsewhere."),
    ]


# A sink without a type in YAML is of the first class.
Sink = ParquetSinkOptions | PostgresSinkOptions | DeltaSinkOptions | IcebergSinkOptions
