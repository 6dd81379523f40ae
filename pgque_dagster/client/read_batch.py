"""What readers and sinks need: events under one id, from a claimed batch or a window of time."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from .calls.call import Call
from .calls.failures import Reason
from .models import BatchInfo, History, Lease, ReadPlan

if TYPE_CHECKING:
    from .batch import AckResult
    from .lease import LeaseKeeper
    from .session import Session


class ReadBatch(Protocol):
    """Events that are read by a plan and stored under an id. Only a `Batch` is also acked.

    Each attempt at the same events has the same `batch_id`, and a higher `lease.epoch` than those
    before it.
    """

    session: "Session"
    queue: str
    consumer: str
    slot: str | None
    lease: Lease

    @property
    def batch_id(self) -> int:
        """The id of the events."""

    @property
    def keeper(self) -> "LeaseKeeper | None":
        """What keeps the lease alive; None if nothing does."""

    @property
    def requested(self) -> "AckResult":
        """How many events were passed to `nack` and `dead_letter`."""

    @property
    def info(self) -> Callable[[], BatchInfo]:
        """Returns the ticks, times and event ids."""

    @property
    def renew(self) -> Callable[[], Any]:
        """Extends the lease, if there is one."""

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the events into slices."""

    def history_call(self, max_events: int) -> Call[History] | None:
        """Returns the call for how the consumer fared before; None without a consumer."""

    def nack(
        self, msg_ids: Iterable[int], *, retry_after: timedelta = ..., reason: Reason = None
    ) -> None:
        """Sets events aside for another delivery."""

    def dead_letter(self, msg_ids: Iterable[int], *, reason: Reason) -> None:
        """Sets events aside for good."""

    def before_publishing(self, check: Callable[[], object]) -> None:
        """Runs a function before results are published."""

    def run_checks(self) -> None:
        """Runs what `before_publishing` was given."""
