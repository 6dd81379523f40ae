"""Applies batches of a queue in another database, each exactly once."""

from .consumer import RemoteConsumer
from .mover import QueueMover

__all__ = ["QueueMover", "RemoteConsumer"]
