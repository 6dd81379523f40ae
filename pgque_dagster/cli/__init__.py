"""The `pgque` command: manage queues, send events, tick and look after dead letters in a shell."""

from .app import main

__all__ = ["main"]
