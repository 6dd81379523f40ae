"""The SQL that the client sends, by concept. Nothing here does input or output.

A call is a text, its parameters, and how to read the rows. A client runs it on whatever kind of
connection it has.
"""

from . import (
    addons,
    batches,
    consumers,
    logs,
    maintenance,
    plans,
    publishing,
    queues,
    statistics,
)

__all__ = [
    "addons",
    "batches",
    "consumers",
    "logs",
    "maintenance",
    "plans",
    "publishing",
    "queues",
    "statistics",
]
