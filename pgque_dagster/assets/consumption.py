"""The decorators' arguments that say what an asset consumes, and how."""

from dataclasses import dataclass
from datetime import timedelta

import dagster as dg


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

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        for option, value in (("max_batches", self.max_batches), ("slices", self.slices)):
            if value < 1:
                self._refuse(f"{option} is {value}: it must be 1 or more")
        for option, time in (("lease_ttl", self.lease_ttl), ("timeout", self.timeout)):
            if time is not None and time <= timedelta():
                self._refuse(f"{option} is {time}: it must be more than 0")
        if self.max_seconds is not None and (self.max_seconds <= 0 or self.max_batches == 1):
            self._refuse("max_seconds must be more than 0 and needs max_batches of 2 or more")

    def __str__(self) -> str:
        return f"{self.queue}/{self.consumer}"

    def _refuse(self, what: str) -> None:
        raise dg.DagsterInvalidDefinitionError(f"consumer {self}: {what}")
