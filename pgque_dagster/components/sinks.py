"""The sinks of a consumer: the IO managers in YAML."""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_type_hints

import dagster as dg
from pydantic import BaseModel, Field

from ..assets.io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from ..spark.sinks.merge import Mode
from .options import Options, option
from .table_sinks import DeltaSinkOptions, IcebergSinkOptions, StorageOptions


class ParquetSinkOptions(Options):
    """Options of `ParquetBatchIOManager`."""

    type: Annotated[Literal["parquet"], option("One directory per batch, replaced as a whole.")] = (
        "parquet"
    )
    base_dir: Annotated[
        str,
        option(
            "A directory that driver and executors share, or a URL of an object store.",
            "{{ context.project_root }}/output",
        ),
    ]
    storage_options: StorageOptions = Field(default={}, repr=False)

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs the resource `pyspark`."""

        @dg.io_manager(required_resource_keys={"pyspark"})
        def parquet(context: dg.InitResourceContext) -> ParquetBatchIOManager:
            return ParquetBatchIOManager(
                pyspark=context.resources.pyspark,
                base_dir=self.base_dir,
                storage_options=self.storage_options,
            )

        return parquet


class PostgresSinkOptions(Options):
    """Options of `PostgresBatchIOManager`; its database is the queue's."""

    type: Annotated[
        Literal["postgres"],
        option("A table of the queue's database, merged in the transaction of the ack."),
    ]
    mode: Annotated[
        Mode, option("append; or, by key, upsert (replaces values) or add (adds values).")
    ] = "append"
    key: Annotated[
        list[str], option("Columns of a unique index, for upsert and add.", ["product"])
    ] = Field(default=[])
    stage_schema: Annotated[
        str | None,
        option("Where rows are staged, if the role may not create tables in the table's schema."),
    ] = None

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Refuses a merge by a key without a key, and a key without such a merge."""
        mode, key = (cls.value_of(values, name) for name in ("mode", "key"))
        if mode in ("upsert", "add") and not key:
            raise ValueError(f"mode is {mode}: name the columns of a unique index in `key`")
        if mode == "append" and isinstance(key, list) and key:
            raise ValueError("mode is append, which has no key: leave out `key`, or set mode")

    def io_manager(self) -> dg.IOManagerDefinition:
        """Returns the IO manager that stores there; it needs `pgque` and `pyspark`."""

        @dg.io_manager(required_resource_keys={"pgque", "pyspark"})
        def postgres(context: dg.InitResourceContext) -> PostgresBatchIOManager:
            return PostgresBatchIOManager(
                pgque=context.resources.pgque,
                pyspark=context.resources.pyspark,
                mode=self.mode,
                key=self.key,
                stage_schema=self.stage_schema,
            )

        return postgres


Sink = ParquetSinkOptions | PostgresSinkOptions | DeltaSinkOptions | IcebergSinkOptions

# A sink without a type is of the first kind.
_KINDS = (ParquetSinkOptions, PostgresSinkOptions, DeltaSinkOptions, IcebergSinkOptions)


def sink_types() -> dict[str, str]:
    """Returns what each `type` of sink is."""
    types = [get_type_hints(kind, include_extras=True)["type"] for kind in _KINDS]
    return {get_args(each.__origin__)[0]: each.__metadata__[0].description for each in types}


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
