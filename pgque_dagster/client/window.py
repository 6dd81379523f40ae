"""The events of a time window, of one database or of several, in place of a batch.

No consumer is registered for it, and nothing is leased or acked: each attempt reads the same ticks,
and has a higher number than those before it. Sinks use this number as the epoch, so the newest
attempt replaces what earlier ones stored, and is not replaced by them.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from . import plans
from .errors import InvalidArgument
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import Failures, ReadBatch
from .session import Session
from .sharded import ShardedClaim

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
        """Leaves events out, if that is allowed; a window has no other delivery."""
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


class ShardedWindow(ShardedClaim[Window]):
    """The window of each shard of a queue, under the id that each of them has.

    Its epoch is the highest one of them. Each is higher than that of any earlier attempt in its
    database, so the highest one is, too, unless a shard was removed. Attempts that overlap may have
    the same one: sinks refuse the second to publish.
    """

    is_window = True

    def __init__(self, members: Mapping[str, Window]) -> None:
        super().__init__(members)
        leases = [window.lease for window in self.members.values()]
        self.lease = replace(
            self.lease, batch_id=leases[0].batch_id, epoch=max(lease.epoch for lease in leases)
        )

    def info(self) -> BatchInfo:
        """Returns the times of the window, with the ticks of its first shard."""
        return next(iter(self.members.values())).info()


def window_id(start: datetime) -> int:
    """Returns the number of the window that begins at a time: 202612242300."""
    return int(start.astimezone(UTC).strftime("%Y%m%d%H%M"))


def _window_ticks(queue: str, start: datetime, end: datetime) -> Call[tuple[BatchInfo, int]]:
    """Returns what a window spans, with a number that is higher than that of any earlier call.

    The server refuses a window that is not over, or whose ticks are gone.
    """
    return Call(
        "select prev_tick_id, tick_id, lag, seq_start, seq_end, attempt "
        "from pgque.window_ticks(%s, %s, %s)",
        (queue, start, end),
        lambda rows: (BatchInfo(queue, _CONSUMER, start, end, *rows[0][:-1]), rows[0][-1]),
    )
