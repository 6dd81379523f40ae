"""Applies batches of a queue in another database, each exactly once."""

from .changes import Change
from .consumer import RemoteConsumer
from .loader import TableLoader
from .mover import QueueMover

__all__ = [
    "Change",
    "QueueMover",
    "RemoteConsumer",
    "TableLoader",
]
