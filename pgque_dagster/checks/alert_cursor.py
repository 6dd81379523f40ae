"""What the sensor of alerts remembers: the problems that were told, and counters of events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

_VERSION = 1


@dataclass(frozen=True, order=True)
class Problem:
    """What is wrong: a check of health, or another name, of a queue.

    Attributes:
        queue: empty for a problem of the whole database.
        name: such as `rotation_health` or `held_batch:revenue`.
    """

    queue: str
    name: str


@dataclass(frozen=True)
class GivenUp:
    """How many events of a queue were given up in all, and when more were seen last.

    Attributes:
        ever: the counter.
        grown_at: None once that is told to be over, or where it never was.
    """

    ever: int
    grown_at: datetime | None


@dataclass(frozen=True)
class AlertCursor:
    """The problems that were told and are not over, with since when; and the counters of queues."""

    told: Mapping[Problem, datetime] = field(default_factory=dict)
    given_up: Mapping[str, GivenUp] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` wrote; anything else is a cursor that knows nothing."""
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
        """Returns the cursor as text, with the version of its form."""
        return json.dumps(
            {
                "version": _VERSION,
                "told": [
                    [problem.queue, problem.name, since.isoformat()]
                    for problem, since in sorted(self.told.items())
                ],
                "given_up": [
                    [queue, each.ever, each.grown_at and each.grown_at.isoformat()]
                    for queue, each in sorted(self.given_up.items())
                ],
            }
        )
