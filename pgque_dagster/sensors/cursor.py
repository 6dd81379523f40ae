"""What a sensor remembers between evaluations: which consumer comes first in the next one.

Nothing else: attempts are the runs that Dagster recorded, and who works on a batch is told by its
lease. So a cursor that is lost, or of another version, costs one turn and no batch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

T = TypeVar("T")

_VERSION = 1


@dataclass(frozen=True)
class SensorCursor:
    """The name of the consumer whose turn it is; None for the first one."""

    first: str | None = None

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` wrote; anything else is a cursor that knows nothing."""
        try:
            fields = json.loads(text or "null")
        except ValueError:
            return cls()
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            return cls()
        first = fields.get("first")
        return cls(first) if isinstance(first, str) else cls()

    def write(self) -> str:
        """Returns the cursor as text, with the version of its form."""
        return json.dumps({"version": _VERSION, "first": self.first})

    def rotate(self, items: Sequence[T]) -> list[T]:
        """Returns the items with the one of that name first, and those before it at the end.

        Args:
            items: told apart by their text. Without one of that name they stay as they are.
        """
        names = [str(item) for item in items]
        start = names.index(self.first) if self.first in names else 0
        return [*items[start:], *items[:start]]
