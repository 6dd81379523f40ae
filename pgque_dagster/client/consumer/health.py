"""The health of a consumer, for the probes of a service."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..models import HealthCheck

State = Literal["stopped", "idle", "working", "reconnecting"]


@dataclass(frozen=True)
class ConsumerHealth:
    """The health of a consumer.

    Attributes:
        state: what it is doing.
        batch_id: the batch that it is working on.
        since: since when it is in this state.
        error: the last error that made it reconnect; None once it is connected again.
        checks: the health checks of the database and of the consumer's queues; empty if the
            database cannot be reached.
    """

    state: State
    batch_id: int | None
    since: datetime
    error: str | None
    checks: list[HealthCheck]

    @property
    def is_ok(self) -> bool:
        """Whether it runs, is connected, and no check is critical."""
        is_running = self.state in ("idle", "working")
        return is_running and all(check.status != "critical" for check in self.checks)
