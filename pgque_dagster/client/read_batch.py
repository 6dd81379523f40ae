"""A claim as readers and sinks see it: events under one id, of a batch, a window, or several.

Failures are collected here, and a batch writes them in the ack's transaction, so they take effect
only if the batch is finished. A crash before the ack leaves no retry and no dead letter, so the
next attempt cannot create them twice.
"""

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any

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
        msg_ids: the ids of the events, eight bytes each.
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
                number of ids, or `retry_after` is not a timedelta.
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
    """A claim: events that a plan reads and a sink stores under an id. Only a `Batch` is acked.

    Each attempt at the same events has the same `batch_id`, and a higher `lease.epoch` than all
    earlier attempts. A vector (`sharded_claim.py`) is one attempt at its members, with its own id.

    Attributes:
        session: a session of the database; None for several databases.
        queue: the queue's name.
        consumer: the consumer's name.
        slot: the slot and the number of slots, such as 3/8, of a partitioned consumer; else None.
        lease: the batch's id, its epoch, and the ticks it spans.
        shards: the claims that it consists of, by the names of their databases; empty for one.
        is_window: whether it is a window of time, which is never acked.
        is_final: whether no later attempt replaces what a sink stores of it.
        is_stored: whether a sink has stored it for good.
    """

    shards: Mapping[str, "ReadBatch"] = MappingProxyType({})
    is_window: bool = False
    is_final: bool = False
    is_stored: bool = False

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

    @property
    def members(self) -> "Mapping[str, ReadBatch]":
        """The claims that tables record separately: a vector's members, or itself under ""."""
        return self.shards if self.is_final else {"": self}

    @cached_property
    def incarnation(self) -> str:
        """The incarnation of its database."""
        return str(self.session.incarnation())

    @property
    def incarnations(self) -> dict[str, str]:
        """The incarnations by shard; for one database, its own under ""."""
        return {"": self.incarnation, **{x: each.incarnation for x, each in self.shards.items()}}

    @property
    def origin(self) -> str:
        """A name of the consumer that is unique across databases."""
        return f"{self.incarnation}/{self.queue}/{self.consumer}"

    @property
    def record(self) -> str:
        """A unique name of the batch, which tables record."""
        return f"{self.origin}/{self.batch_id}"

    @property
    def version(self) -> str:
        """A text unique to the attempt, which may compute other data from the same events."""
        return f"{self.incarnation}:{self.batch_id}:{self.lease.epoch}"

    def __str__(self) -> str:
        return f"batch {self.batch_id} of {self.queue}/{self.consumer}"

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Reason = None,
    ) -> None:
        """Schedules events for another delivery, or dead-letters them once their retries run out.

        Takes effect at the ack, which raises `EventNotInBatch` for an id of another batch. An
        event also passed to `dead_letter` only becomes a dead letter.

        Args:
            msg_ids: ids of the events; duplicates count once.
            retry_after: how long to wait before the next delivery.
            reason: stored with the dead letter of an event that has no retries left: one text for
                all events, or one for each id.

        Raises:
            InvalidArgument: if an id is not an integer, or the number of reasons differs from the
                number of ids; or if the batch belongs to a slot.
        """
        if self.slot is not None:
            raise InvalidArgument(
                f"slot {self.slot} of {self.queue}/{self.consumer} keeps the events of each key in "
                "order, and a redelivered event would come after later ones",
                "Dead-letter the event, or raise an error to retry the whole batch.",
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

    def dump_failures(self) -> str:
        """Returns what was passed to `dead_letter` and `nack`, for `load_failures`. For sinks."""
        dumped = []
        for each in (*self._dead_lettered, *self._nacked):
            after = None if each.retry_after is None else each.retry_after.total_seconds()
            dumped.append((list(each.msg_ids), list(each.reasons), after))
        return json.dumps(dumped)

    def load_failures(self, dumped: str) -> None:
        """Takes over, for the ack, the failures of the attempt that stored the batch."""
        for ids, reasons, after in json.loads(dumped):
            if after is None:
                self.dead_letter(ids, reason=reasons)
            else:
                self.nack(ids, reason=reasons, retry_after=timedelta(seconds=after))

    def before_publishing(self, check: Callable[[], object]) -> None:
        """Runs a function before results are published, at the latest before the ack.

        It may call `nack` and `dead_letter`. For readers, not for users.

        Args:
            check: runs once. If it raises, nothing is published, and it runs again before any
                further attempt to publish or to ack.
        """
        self._checks.append(check)

    @contextmanager
    def own_checks(self) -> Iterator[None]:
        """If the block fails, forgets what it passed to `before_publishing`. For replicas."""
        before = list(self._checks)
        try:
            yield
        except BaseException:
            self._checks = before
            raise

    def run_checks(self) -> None:
        """Runs the checks that `before_publishing` collected. For sinks, not for users."""
        while self._checks:
            self._checks[0]()
            self._checks.pop(0)

    @property
    @abstractmethod
    def keeper(self) -> LeaseKeeper | None:
        """The keeper of the lease, or None."""

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
        """Returns the call for how the consumer handled earlier events; None without a consumer.

        For readers, not for users.
        """
