"""Failed events of a batch, collected until its ack writes them."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from .. import calls
from ..errors import InvalidArgument
from ..models import Lease
from ..ranges import check_interval
from .call import Call

# The number of ids per call. Each call scans the batch once, and holds its ids and reasons.
_IDS_PER_CALL = 250_000

Reason = str | Sequence[str | None] | None


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

    def calls(self, lease: Lease) -> Iterator[Call[int]]:
        """Yields the calls that write the failures, with a limited number of ids each."""
        for start in range(0, len(self.msg_ids), _IDS_PER_CALL):
            part = slice(start, start + _IDS_PER_CALL)
            reasons = self.reasons if len(self.reasons) == 1 else self.reasons[part]
            if self.retry_after is None:
                yield calls.batches.dead_letter_batch(lease, self.msg_ids[part], reasons)
            else:
                yield calls.batches.nack_batch(lease, self.msg_ids[part], self.retry_after, reasons)
