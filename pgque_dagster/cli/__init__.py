"""The `pgque` command: manage queues, send events, run ticks and handle dead letters."""

from .app import main

# Each module declares its commands when it is imported.
from .commands import (  # noqa: F401
    consumers,
    dead_letters,
    embedded,
    health,
    init,
    metrics,
    peek,
    queues,
    relay,
    replicas,
    schema,
    send,
    status,
    ticker,
)

__all__ = ["main"]
