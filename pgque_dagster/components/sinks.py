"""The sinks of a consumer: the IO managers in YAML."""

from typing import Annotated, ClassVar, Literal, Self, get_args

import dagster as dg
from pydantic import model_validator

from ..assets.io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from ..assets.lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager
from ..spark.sinks.modes import DeltaMode, check_mode
from ..spark.sinks.postgres.merge import Mode
from .options import Options, mirror, option


class SinkOptions(Options):
    """A sink: the options of an IO manager, which `stored_by` names."""

    stored_by: ClassVar[type[dg.ConfigurableIOManager]]
    # Its modes, of which all but the first need a key.
    modes: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.modes:
            given = self.arguments()
            check_mode(given["mode"], given["key"], self.modes)
        return self

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs `pyspark`, and most also `pgque`."""
        options = self.arguments()
        needed = {"pgque", "pyspark"} & set(self.stored_by.model_fields)

        @dg.io_manager(required_resource_keys=needed)
        def sink(context: dg.InitResourceContext) -> dg.ConfigurableIOManager:
            resources = {key: getattr(context.resources, key) for key in needed}
            return self.stored_by(**resources, **options)

        return sink


_RESOURCES = ["pgque", "pyspark"]


class ParquetSinkOptions(SinkOptions, mirror(ParquetBatchIOManager, leave_out=_RESOURCES)):
    """Options of `ParquetBatchIOManager`."""

    stored_by = ParquetBatchIOManager
    type: Annotated[Literal["parquet"], option("One directory per batch, replaced as a whole.")] = (
        "parquet"
    )


class PostgresSinkOptions(SinkOptions, mirror(PostgresBatchIOManager, leave_out=_RESOURCES)):
    """Options of `PostgresBatchIOManager`; its database is the queue's."""

    stored_by = PostgresBatchIOManager
    modes = get_args(Mode)
    type: Annotated[
        Literal["postgres"],
        option("A table of the queue's database, merged in the transaction of the ack."),
    ]


class DeltaSinkOptions(SinkOptions, mirror(DeltaBatchIOManager, leave_out=_RESOURCES)):
    """Options of `DeltaBatchIOManager`."""

    stored_by = DeltaBatchIOManager
    modes = get_args(DeltaMode)
    type: Annotated[Literal["delta"], option("A Delta table, at <base_dir>/<asset>.")]


class IcebergSinkOptions(SinkOptions, mirror(IcebergBatchIOManager, leave_out=_RESOURCES)):
    """Options of `IcebergBatchIOManager`."""

    stored_by = IcebergBatchIOManager
    type: Annotated[
        Literal["iceberg"],
        option("An Iceberg table; its catalog is in the queue's database, or another one."),
    ]


# A sink without a type is of the first kind.
Sink = ParquetSinkOptions | PostgresSinkOptions | DeltaSinkOptions | IcebergSinkOptions
