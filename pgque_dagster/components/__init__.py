"""Queues and their consumers as Dagster components: the Python API in YAML, under the same names.

A component only composes what the Python API builds.
"""

from .batch_consumer import BatchConsumerComponent
from .pgque import PgqueComponent
from .queue import QueueComponent
from .table_replica import TableReplicaComponent
from .window import WindowComponent

__all__ = [
    "BatchConsumerComponent",
    "PgqueComponent",
    "QueueComponent",
    "TableReplicaComponent",
    "WindowComponent",
]
