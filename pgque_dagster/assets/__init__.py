"""What an asset does with a batch: claim, compute, store, check, ack."""

from .decorators import pgque_asset, pgque_multi_asset
from .io_managers import ParquetBatchIOManager, PostgresBatchIOManager
from .lake_io_managers import DeltaBatchIOManager, IcebergBatchIOManager

__all__ = [
    "DeltaBatchIOManager",
    "IcebergBatchIOManager",
    "ParquetBatchIOManager",
    "PostgresBatchIOManager",
    "pgque_asset",
    "pgque_multi_asset",
]
