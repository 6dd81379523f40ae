"""The events of a time window, used like a batch.

The window has no consumer and no lease, and is never acked: each attempt reads the same ticks, and
has a higher number than all before it. Sinks use this number as the epoch, so the newest attempt
replaces what earlier ones stored, and earlier ones cannot replace it.
"""

from datetime import UTC, datetime

from . import plans
from .errors import InvalidArgument
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import Failures, ReadBatch
from .session import Session

# Stands for the consumer in names of batches and in errors.
_CONSUMER = "window"


class Window(ReadBatch):
    """The events of a queue between two ticks that surround a time window.

    Its `batch_id` is the start of the window in UTC, as YYYYMMDDHHMM.

    Args:
        session: a session of the database.
        queue: the queue's name.
        start: the beginning of the window, with a time zone.
        end: its end, which is not included.
        leave_out_failed: allows the reader to leave events out, such as malformed ones. They are
            counted, and the queue's consumers are not affected.

    Raises:
        InvalidArgument: if the window is not over, or its ticks are not all retained.
    """

    session: Session
    is_window = True
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
        self._info, attempt = session.run(_window_ticks(queue, start, end))
        lease = Lease(
            batch_id=window_id(start),
            owner=_CONSUMER,
            epoch=attempt,
            until=end,
            prev_tick_id=self._info.prev_tick_id,
            tick_id=self._info.tick_id,
        )
        super().__init__(session, queue, _CONSUMER, lease)
        self._leave_out_failed = leave_out_failed

    def info(self) -> BatchInfo:
        """Returns the ticks, times and event ids of the window."""
        return self._info

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the window into slices. For readers, not for users."""
        return plans.tick_range_plan(
            self.queue, self.lease.prev_tick_id, self.lease.tick_id, max_slices
        )

    def history_call(self, max_events: int) -> None:
        """Returns None: a window has no consumer, and its events may have been read before."""

    def renew(self) -> None:
        """Does nothing: a window has no lease, and sinks compare the numbers of attempts."""

    def _note(self, failures: Failures) -> None:
        """Leaves events out, if that is allowed; a window cannot deliver them again."""
        if self._leave_out_failed or not failures.msg_ids:
            super()._note(failures)
            return
        count, why = len(failures.msg_ids), failures.reasons[0]
        raise InvalidArgument(
            f"the window from {self._info.start} to {self._info.end} of queue {self.queue} would "
            f"lack {count} event{'s' if count > 1 else ''} that the function sets aside, "
            f"the first being {failures.msg_ids[0]}{f': {why}' if why else ''}",
            "A window has no dead letters and no retries. Correct the schema or the function, read "
            "with on_malformed='keep', or allow it: leave_out_failed=True.",
        )


def window_id(start: datetime) -> int:
    """Returns the id of the window that begins at a time, such as 202612242300."""
    return int(start.astimezone(UTC).strftime("%Y%m%d%H%M"))


def _window_ticks(queue: str, start: datetime, end: datetime) -> Call[tuple[BatchInfo, int]]:
    """Returns the span of a window, with a higher number than all earlier calls returned.

    The server refuses a window that is not over, or whose ticks are gone.
    """
    return Call(
        "select prev_tick_id, tick_id, lag, seq_start, seq_end, attempt "
        "from pgque.window_ticks(%s, %s, %s)",
        (queue, start, end),
        lambda rows: (BatchInfo(queue, _CONSUMER, start, end, *rows[0][:-1]), rows[0][-1]),
    )
