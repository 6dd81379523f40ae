"""Sinks for the results of batches. Another attempt at a batch does not count it twice.

The names below are loaded on first use: see `pgque_dagster.spark`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...missing_modules import naming_extras

if TYPE_CHECKING:
    from .delta.sink import DeltaSink
    from .files.sink import ParquetSink
    from .iceberg.sink import IcebergSink
    from .postgres.once import once_per_batch
    from .postgres.sink import PostgresSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink", "PostgresSink", "once_per_batch"]

_MODULES = {
    "DeltaSink": "delta.sink",
    "IcebergSink": "iceberg.sink",
    "ParquetSink": "files.sink",
    "PostgresSink": "postgres.sink",
    "once_per_batch": "postgres.once",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extras(name, "spark"):
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
