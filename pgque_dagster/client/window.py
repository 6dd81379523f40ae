"""The events of a time window, which readers and sinks take in place of a batch.

No consumer is registered for it, and nothing is
leased or acked: each attempt reads the same ticks, and has a higher number than those before it.
Sinks use this number as the epoch, so the newest attempt replaces what earlier ones stored, and is
not replaced by them.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from . import plans
from .errors import InvalidArgument
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import Failures, ReadBatch, Reason
from .session import Session
from .ticks import TickWindow, window_ticks

# In place of a consumer, in names of batches and in errors.
_CONSUMER = "window"


class Window(ReadBatch):
    """The events of a queue between two ticks around a time window.

    Its `batch_id` is the start of the window in UTC, as YYYYMMDDHHMM.

    Args:
        session: of the database.
        queue: the queue's name.
        start: the beginning of the window, with a time zone.
        end: its end, which is not part of it.
        leave_out_failed: allows the reader to leave events out, such as malformed ones. They are
            counted, and the queue's consumers are not affected.

    Raises:
        InvalidArgument: if the window is not over, or its ticks are not all retained.
    """

    session: Session
    # Nothing is leased, so nothing is kept alive.
    keeper = None

    def __init__(
        self,
        session: Session,
        queue: str,
        start: datetime,
        end: datetime,
        *,
        leave_out_failed: bool = False,
    ) -> None:
        ticks = session.run(window_ticks(queue, start, end))
        lease = Lease(
            batch_id=window_id(start),
            owner=_CONSUMER,
            epoch=ticks.attempt,
            until=end,
            prev_tick_id=ticks.prev_tick_id,
            tick_id=ticks.tick_id,
        )
        super().__init__(session, queue, _CONSUMER, lease)
        self._ticks: TickWindow = ticks
        self._start, self._end = start, end
        self._leave_out_failed = leave_out_failed

    def info(self) -> BatchInfo:
        """Returns the ticks, times and event ids of the window."""
        ticks = self._ticks
        return BatchInfo(
            queue=self.queue,
            consumer=self.consumer,
            start=self._start,
            end=self._end,
            prev_tick_id=ticks.prev_tick_id,
            tick_id=ticks.tick_id,
            lag=ticks.lag,
            seq_start=ticks.seq_start,
            seq_end=ticks.seq_end,
        )

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the window into slices. For readers, not for users."""
        return plans.tick_range_plan(
            self.queue, self._ticks.prev_tick_id, self._ticks.tick_id, max_slices
        )

    def history_call(self, max_events: int) -> None:
        """Returns None: a window has no consumer, and its events may have been read before."""

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Reason = None,
    ) -> None:
        """Leaves events out, if that is allowed; there is no other delivery of a window."""
        self._leave_out(Failures.of(msg_ids, reason, retry_after))
        super().nack(msg_ids, retry_after=retry_after, reason=reason)

    def dead_letter(self, msg_ids: Iterable[int], *, reason: Reason) -> None:
        """Leaves events out, if that is allowed; a window makes no dead letters."""
        self._leave_out(Failures.of(msg_ids, reason, None))
        super().dead_letter(msg_ids, reason=reason)

    def renew(self) -> None:
        """Does nothing: a window has no lease, and sinks compare the numbers of attempts."""

    def _leave_out(self, failures: Failures) -> None:
        if self._leave_out_failed or not failures.msg_ids:
            return
        count, why = len(failures.msg_ids), failures.reasons[0]
        raise InvalidArgument(
            f"the window from {self._start} to {self._end} of queue {self.queue} would lack "
            f"{count} event{'s' if count > 1 else ''} that the function sets aside, "
            f"the first being {failures.msg_ids[0]}{f': {why}' if why else ''}",
            "A window has no dead letters and no retries. Correct the schema or the function, read "
            "with on_malformed='keep', or allow it: leave_out_failed=True.",
        )


def window_id(start: datetime) -> int:
    """Returns the number of the window that begins at a time: 202612242300."""
    return int(start.astimezone(UTC).strftime("%Y%m%d%H%M"))
