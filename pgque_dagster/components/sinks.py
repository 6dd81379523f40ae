"""The sinks of a consumer: the IO managers in YAML."""

from typing import Annotated, ClassVar, Literal, Self

import dagster as dg
from pydantic import model_validator

from ..assets.io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from ..assets.lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager
from .mirror import mirror
from .options import Options, option


class SinkOptions(Options):
    """A sink: the options of an IO manager, which `stored_by` names."""

    stored_by: ClassVar[type[dg.ConfigurableIOManager]]
    # Modes in which rows are replaced by a key.
    keyed: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.keyed:
            mode, key = getattr(self, "mode", None), getattr(self, "key", None)
            if mode in self.keyed and not key:
                raise ValueError(f"mode is {mode}: name the columns of a unique index in `key`")
            if mode == "append" and key:
                raise ValueError("mode is append, which has no key: leave out `key`, or set mode")
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
    keyed = ("upsert", "add")
    type: Annotated[
        Literal["postgres"],
        option("A table of the queue's database, merged in the transaction of the ack."),
    ]


class DeltaSinkOptions(SinkOptions, mirror(DeltaBatchIOManager, leave_out=_RESOURCES)):
    """Options of `DeltaBatchIOManager`."""

    stored_by = DeltaBatchIOManager
    keyed = ("upsert",)
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
