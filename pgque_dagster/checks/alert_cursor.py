"""The cursor of the alert sensor: the open problems, and counters of events given up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

_VERSION = 1


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
class GivenUp:
    """How many events of a queue were given up in all, and when the number last grew.

    Attributes:
        ever: the counter.
        grown_at: when the sensor last saw it grow; None if it never did or if the growth is over.
    """

    ever: int
    grown_at: datetime | None


@dataclass(frozen=True)
class AlertCursor:
    """The notified problems that are not over, with their start, and the queues' counters."""

    notified: Mapping[Problem, datetime] = field(default_factory=dict)
    given_up: Mapping[str, GivenUp] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` returned; any other text gives an empty cursor."""
        try:
            fields = json.loads(text or "null")
            if fields["version"] != _VERSION:
                return cls()
            return cls(
                {
                    Problem(queue, name): datetime.fromisoformat(since)
                    for queue, name, since in fields["told"]
                },
                {
                    queue: GivenUp(ever, grown_at and datetime.fromisoformat(grown_at))
                    for queue, ever, grown_at in fields["given_up"]
                },
            )
        except (ValueError, TypeError, KeyError):
            return cls()

    def write(self) -> str:
        """Returns the cursor as text, with the version of its format."""
        return json.dumps(
            {
                "version": _VERSION,
                "told": [
                    [problem.queue, problem.name, since.isoformat()]
                    for problem, since in sorted(self.notified.items())
                ],
                "given_up": [
                    [queue, each.ever, each.grown_at and each.grown_at.isoformat()]
                    for queue, each in sorted(self.given_up.items())
                ],
            }
        )
