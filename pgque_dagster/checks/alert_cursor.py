"""The cursor of the alert sensor: the open problems, and the newest dead letters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

_VERSION = 2


@dataclass(frozen=True, order=True)
class Problem:
    """Identifies a problem by queue and name.

    Attributes:
        queue: empty for a problem of the whole database.
        name: a health check or another problem, such as `rotation_health` or
            `held_batch:revenue:812`.
    """

    queue: str
    name: str


@dataclass(frozen=True)
class AlertCursor:
    """The notified problems that are not over, with their start; queues' newest dead letters."""

    notified: Mapping[Problem, datetime] = field(default_factory=dict)
    dead_letters: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` returned; any other text gives an empty cursor."""
        try:
            fields = json.loads(text or "null")
            if fields["version"] != _VERSION:
                return cls()
            notified = {
                Problem(queue, name): datetime.fromisoformat(since)
                for queue, name, since in fields["notified"]
            }
            return cls(notified, dict(fields["dead_letters"]))
        except (ValueError, TypeError, KeyError):
            return cls()

    def write(self) -> str:
        """Returns the cursor as text, with the version of its format."""
        return json.dumps(
            {
                "version": _VERSION,
                "notified": [
                    [problem.queue, problem.name, since.isoformat()]
                    for problem, since in sorted(self.notified.items())
                ],
                "dead_letters": self.dead_letters,
            }
        )
