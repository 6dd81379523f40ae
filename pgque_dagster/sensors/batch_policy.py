"""The options that sensors and schedules share: which batches are opened, and their attempts."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

import dagster as dg

from ..client import Limits
from ..client.ranges import count_problem, duration_problem

OnExhausted = Literal["hold", "dead_letter"]

# The number of runs that fail before they claim is not limited, so the wait between them grows.
_LONGEST_WAIT = timedelta(minutes=10)


@dataclass(frozen=True)
class BatchPolicy:
    """When a batch is opened, how many attempts it gets, and what happens when they are used up.

    The fields are the options of `build_pgque_sensor`.
    """

    max_events: int
    max_attempts: int
    backoff: timedelta
    on_exhausted: OnExhausted
    min_events: int | None = None
    max_age: timedelta | None = None

    @property
    def limits(self) -> Limits:
        """Which batches are opened."""
        return Limits(
            min_count=self.min_events, min_interval=self.max_age, max_count=self.max_events
        )

    def wait_after(self, runs: int) -> timedelta:
        """Returns how long to wait after this number of runs.

        The wait doubles with each run, up to 10 minutes, or up to `backoff` if that is longer.
        """
        doublings = min(runs - 1, 20)
        return min(self.backoff * (1 << doublings), max(self.backoff, _LONGEST_WAIT))

    def check(self, kind: str, *more: str | None) -> None:
        """Checks the options.

        Args:
            kind: what has the options, a sensor or a schedule.
            more: problems with its other options; None for an option without a problem.

        Raises:
            DagsterInvalidDefinitionError: if one is out of range.
        """
        problems = [
            count_problem("max_events", self.max_events),
            count_problem("max_attempts", self.max_attempts),
            duration_problem("backoff", self.backoff),
            None if self.max_age is None else duration_problem("max_age", self.max_age),
            *more,
        ]
        if self.on_exhausted not in get_args(OnExhausted):
            known = " or ".join(get_args(OnExhausted))
            problems.append(f"on_exhausted is {self.on_exhausted!r}: it must be {known}")
        if self.min_events is not None and not 0 <= self.min_events <= self.max_events:
            problems.append(
                f"min_events is {self.min_events}: it must be from 0 to max_events "
                f"({self.max_events})"
            )
        for problem in filter(None, problems):
            raise dg.DagsterInvalidDefinitionError(f"a {kind}'s {problem}")
