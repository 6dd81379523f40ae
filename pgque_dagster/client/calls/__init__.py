"""The SQL that the client sends, by concept. Nothing here does input or output.

A call is a text, its parameters, and how to read the rows. A client runs it on whatever kind of
connection it has.
"""

from . import (
    addons,
    batches,
    consumers,
    maintenance,
    plans,
    publishing,
    queues,
)

__all__ = [
    "addons",
    "batches",
    "consumers",
    "maintenance",
    "plans",
    "publishing",
    "queues",
]
