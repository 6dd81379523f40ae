"""The decorators' arguments that say what an asset consumes, and how."""

from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from ..client import InvalidArgument, Position
from ..client.holder import Holder
from ..client.ranges import (
    LONGEST_LEASE,
    MOST_PARTITIONS,
    count_problem,
    duration_problem,
    write_position,
)


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
    timeout: timedelta | None
    returns_nothing: bool = False
    batch_safe: bool = False
    start_at: str | None = None
    returns_frames: bool = False
    partitions: int | None = None

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        problems = [
            count_problem("slices", self.slices),
            duration_problem("lease_ttl", self.lease_ttl, positive=True, at_most=LONGEST_LEASE),
        ]
        if self.partitions is not None:
            problems.append(count_problem("partitions", self.partitions, at_most=MOST_PARTITIONS))
            if "#" in self.consumer:
                problems.append("the name of a consumer with partitions must not contain #")
        if self.timeout is not None:
            problems.append(duration_problem("timeout", self.timeout, positive=True))
        for problem in filter(None, problems):
            self._refuse(problem)

    @property
    def holder(self) -> Holder:
        """The consumer, which a run by hand claims for."""
        return Holder(self.queue, self.consumer)

    def __str__(self) -> str:
        return f"{self.queue}/{self.consumer}"

    def _refuse(self, what: str) -> None:
        raise dg.DagsterInvalidDefinitionError(f"consumer {self}: {what}")


def read_start(start_at: Position | None) -> str | None:
    """Returns where a consumer starts, as text.

    Raises:
        DagsterInvalidDefinitionError: if it is no position.
    """
    try:
        return None if start_at is None else write_position(start_at)
    except InvalidArgument as error:
        raise dg.DagsterInvalidDefinitionError(f"start_at: {error}") from error
