"""The sensor's cursor: it names the consumer that comes first in the next evaluation.

It holds nothing else. Dagster records the attempts, and the lease says who works on a batch. So a
cursor that is lost, or written by another version, only changes whose turn it is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

T = TypeVar("T")

_VERSION = 1


@dataclass(frozen=True)
class SensorCursor:
    """The name of the consumer that comes first; None for the order given."""

    first: str | None = None

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` returned; any other text gives an empty cursor."""
        try:
            fields = json.loads(text or "null")
        except ValueError:
            return cls()
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            return cls()
        first = fields.get("first")
        return cls(first) if isinstance(first, str) else cls()

    def write(self) -> str:
        """Returns the cursor as text, with the version of its format."""
        return json.dumps({"version": _VERSION, "first": self.first})

    def rotate(self, items: Sequence[T]) -> list[T]:
        """Returns the items, rotated so that the one named `first` comes first.

        Args:
            items: identified by their text. If none has that text, the order does not change.
        """
        names = [str(item) for item in items]
        start = names.index(self.first) if self.first in names else 0
        return [*items[start:], *items[:start]]
