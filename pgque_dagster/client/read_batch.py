"""What readers and sinks need: events under one id, from a claimed batch or a window of time.

Failures are collected here. A batch writes them in the ack's transaction, so they take effect only
if it is finished. A crash before the ack leaves no retry and no dead letter, so the next attempt
cannot create them twice.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from .errors import InvalidArgument
from .lease import LeaseKeeper
from .models import BatchInfo, History, Lease, ReadPlan
from .operation import Call
from .ranges import check_interval

Reason = str | Sequence[str | None] | None


@dataclass(frozen=True)
class AckResult:
    """How many events an ack scheduled for another delivery, and how many it dead-lettered."""

    nacked: int
    dead_lettered: int


@dataclass(frozen=True)
class Failures:
    """Events to deliver again or to dead-letter.

    Attributes:
        msg_ids: the ids of the events, with eight bytes each.
        reasons: the reasons in the order of the ids, or one reason for all.
        retry_after: how long to wait before the next delivery; None for dead letters.
    """

    msg_ids: "array[int]"
    reasons: Sequence[str | None]
    retry_after: timedelta | None

    @classmethod
    def of(
        cls, msg_ids: Iterable[int], reason: Reason, retry_after: timedelta | None
    ) -> "Failures":
        """Checks ids and reasons, and returns them as failures.

        Raises:
            InvalidArgument: if an id is not an integer, the number of reasons differs from the
                number of ids, or `retry_after` is no length of time.
        """
        if retry_after is not None:
            check_interval("retry_after", retry_after, is_zero_allowed=True)
        try:
            ids = array("q", msg_ids)
        except (TypeError, OverflowError) as error:
            raise InvalidArgument(
                f"an event id is an integer: {error}", "Pass msg_id or ev_id."
            ) from error
        reasons = [reason] if reason is None or isinstance(reason, str) else reason
        if len(reasons) not in (1, len(ids)):
            raise InvalidArgument(
                f"{len(reasons)} reasons for {len(ids)} events",
                "Give a reason for each id, in the order of the ids, or one for all.",
            )
        return cls(ids, reasons, retry_after)


class ReadBatch(ABC):
    """Events that are read by a plan and stored under an id. Only a `Batch` is also acked.

    Each attempt at the same events has the same `batch_id`, and a higher `lease.epoch` than those
    before it.

    Attributes:
        session: of the database.
        queue: the queue's name.
        consumer: the consumer's name.
        slot: the slot and the number of slots, such as 3/8, of a partitioned consumer; else None.
        lease: the batch's id, its epoch, and the ticks it spans.
        is_window: whether it is a window of time, which is never acked.
    """

    is_window: ClassVar[bool] = False

    def __init__(
        self, session: Any, queue: str, consumer: str, lease: Lease, *, slot: str | None = None
    ) -> None:
        self.session = session
        self.queue = queue
        self.consumer = consumer
        self.slot = slot
        self.lease = lease
        self._nacked: list[Failures] = []
        self._dead_lettered: list[Failures] = []
        self._checks: list[Callable[[], object]] = []

    @property
    def batch_id(self) -> int:
        """The batch's id. Every attempt at the same events has the same id."""
        return self.lease.batch_id

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Reason = None,
    ) -> None:
        """Schedules events for another delivery, or dead-letters them once their retries run out.

        Takes effect at the ack, which raises `EventNotInBatch` for an id of another batch. An
        event passed to `dead_letter` as well becomes a dead letter only.

        Args:
            msg_ids: ids of the events; duplicates count once.
            retry_after: how long to wait before the next delivery.
            reason: stored with the dead letter of an event that has no retries left: one text for
                all events, or one for each id.

        Raises:
            InvalidArgument: if an id is not an integer, or the number of reasons differs from the
                number of ids; or if the batch is one of a slot.
        """
        if self.slot is not None:
            raise InvalidArgument(
                f"slot {self.slot} of {self.queue}/{self.consumer} keeps the events of each key in "
                "order, and an event that is delivered again would come after later ones",
                "Dead-letter the event, or raise, so that the whole batch is tried again.",
            )
        self._note(Failures.of(msg_ids, reason, retry_after))

    def dead_letter(self, msg_ids: Iterable[int], *, reason: Reason) -> None:
        """Makes events dead letters. Takes effect at the ack, which checks the ids as for `nack`.

        Args:
            msg_ids: ids of the events; duplicates count once.
            reason: one text for all events, or one for each id.

        Raises:
            InvalidArgument: if an id is not an integer, or the number of reasons differs from the
                number of ids.
        """
        self._note(Failures.of(msg_ids, reason, None))

    def _note(self, failures: Failures) -> None:
        kind = self._dead_lettered if failures.retry_after is None else self._nacked
        kind.append(failures)

    @property
    def requested(self) -> AckResult:
        """How many events were passed to `nack` and `dead_letter`; `ack` returns the outcome."""
        given_up = {msg_id for some in self._dead_lettered for msg_id in some.msg_ids}
        nacked = {msg_id for some in self._nacked for msg_id in some.msg_ids}
        return AckResult(len(nacked - given_up), len(given_up))

    @property
    def failures(self) -> list[Failures]:
        """What was passed to `dead_letter` and `nack`. For sinks, not for users."""
        return [*self._dead_lettered, *self._nacked]

    def before_publishing(self, check: Callable[[], object]) -> None:
        """Runs a function before results are published, at the latest before the ack.

        It may call `nack` and `dead_letter`. For readers, not for users.

        Args:
            check: runs once, unless it raises: then nothing is published, and it runs again before
                any further attempt to publish or to ack.
        """
        self._checks.append(check)

    @contextmanager
    def own_checks(self) -> Iterator[None]:
        """Forgets what the block gave to `before_publishing`, if it fails. For replicas."""
        before = list(self._checks)
        try:
            yield
        except BaseException:
            self._checks = before
            raise

    def run_checks(self) -> None:
        """Runs what `before_publishing` was given. For sinks, not for users."""
        while self._checks:
            self._checks[0]()
            self._checks.pop(0)

    @property
    @abstractmethod
    def keeper(self) -> LeaseKeeper | None:
        """What keeps the lease alive; None if nothing does."""

    @abstractmethod
    def info(self) -> BatchInfo:
        """Returns the ticks, times and event ids."""

    @abstractmethod
    def renew(self) -> Any:
        """Extends the lease, if there is one."""

    @abstractmethod
    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the events into slices. For readers, not for users."""

    @abstractmethod
    def history_call(self, max_events: int) -> Call[History] | None:
        """Returns the call for how the consumer fared before; None without a consumer.

        For readers, not for users.
        """
