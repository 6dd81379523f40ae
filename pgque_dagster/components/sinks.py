"""The sinks of a consumer: the IO managers in YAML."""

from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal

import dagster as dg
from pydantic import BaseModel

from ..assets.io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from ..assets.lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager
from .mirror import mirror
from .options import Options, option


class SinkOptions(Options):
    """A sink: the options of an IO manager, which `stored_by` names."""

    stored_by: ClassVar[type[dg.ConfigurableIOManager]]
    # Modes in which rows are replaced by a key.
    keyed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Refuses a merge by a key without a key, and a key without such a merge."""
        if not cls.keyed:
            return
        mode, key = (cls.value_of(values, name) for name in ("mode", "key"))
        if mode in cls.keyed and not key:
            raise ValueError(f"mode is {mode}: name the columns of a unique index in `key`")
        if mode == "append" and isinstance(key, list) and key:
            raise ValueError("mode is append, which has no key: leave out `key`, or set mode")

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs `pyspark`, and most also `pgque`."""
        options = self.arguments()
        del options["type"]
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
    keyed = ("upsert", "replace")
    type: Annotated[Literal["delta"], option("A Delta table, at <base_dir>/<asset>.")]


class IcebergSinkOptions(SinkOptions, mirror(IcebergBatchIOManager, leave_out=_RESOURCES)):
    """Options of `IcebergBatchIOManager`."""

    stored_by = IcebergBatchIOManager
    type: Annotated[
        Literal["iceberg"],
        option("An Iceberg table; its catalog is in the queue's database, or another one."),
    ]


Sink = ParquetSinkOptions | PostgresSinkOptions | DeltaSinkOptions | IcebergSinkOptions

# A sink without a type is of the first kind.
_KINDS = (ParquetSinkOptions, PostgresSinkOptions, DeltaSinkOptions, IcebergSinkOptions)


def _resolve(context: dg.ResolutionContext, model: BaseModel | None) -> Sink | None:
    if model is None:
        return None
    kind = next(kind for kind in _KINDS if isinstance(model, kind.model()))
    resolved: Sink = kind.resolve_from_model(context, model)
    return resolved


def sink_option(description: str) -> dg.Resolver:
    """Returns the resolver of a sink attribute; `type` selects the kind of sink."""
    kinds: Any = reduce(or_, (kind.model() for kind in _KINDS)) | None
    return dg.Resolver(_resolve, model_field_type=kinds, description=description)
