"""The decorators' arguments that say what an asset consumes, and how."""

from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from ..ranges import LONGEST_LEASE, count_problem, duration_problem


@dataclass(frozen=True)
class Consumption:
    """What an asset consumes, and how; the fields are arguments of the decorators.

    Raises:
        DagsterInvalidDefinitionError: if a value is out of range.
    """

    queue: str
    consumer: str
    lease_ttl: timedelta
    slices: int
    max_batches: int
    max_seconds: float | None
    timeout: timedelta | None
    returns_nothing: bool = False
    wants_values: bool = False
    batch_safe: bool = False

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        problems = [
            count_problem("max_batches", self.max_batches),
            count_problem("slices", self.slices),
            duration_problem("lease_ttl", self.lease_ttl, positive=True, at_most=LONGEST_LEASE),
        ]
        if self.timeout is not None:
            problems.append(duration_problem("timeout", self.timeout, positive=True))
        for problem in filter(None, problems):
            self._refuse(problem)
        if self.max_seconds is not None and (self.max_seconds <= 0 or self.max_batches == 1):
            self._refuse("max_seconds must be more than 0 and needs max_batches of 2 or more")

    def __str__(self) -> str:
        return f"{self.queue}/{self.consumer}"

    def _refuse(self, what: str) -> None:
        raise dg.DagsterInvalidDefinitionError(f"consumer {self}: {what}")
