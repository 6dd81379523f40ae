"""The `pgque` command: manage queues, send events, run ticks and handle dead letters."""

from .app import main

__all__ = ["main"]
