"""The messages of a batch as handlers get them, and the record of those that failed."""

import json
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any

from ..batch import Batch
from ..models import Message
from ..operation import Row
from ..ranges import check_interval

_LONGEST_REASON = 2000


class FailedMessages:
    """The failed messages of a batch, kept until the ack writes them.

    Args:
        retry_after: how long to wait before the next delivery, unless a handler says otherwise.
    """

    def __init__(self, retry_after: timedelta) -> None:
        self.retry_after = retry_after
        self._by_id: dict[int, tuple[timedelta | None, str | None]] = {}

    def __contains__(self, message: Message) -> bool:
        return message.msg_id in self._by_id

    def nack(self, message: Message, retry_after: timedelta | None, reason: str | None) -> None:
        """Records that the message has to be delivered again.

        Raises:
            InvalidArgument: if `retry_after` is not a timedelta, or is negative.
        """
        after = self.retry_after if retry_after is None else retry_after
        check_interval("retry_after", after, is_zero_allowed=True)
        self._by_id[message.msg_id] = (after, _storable(reason))

    def dead_letter(self, message: Message, reason: str) -> None:
        """Records that the message becomes a dead letter."""
        self._by_id[message.msg_id] = (None, _storable(reason))

    def is_dead(self, message: Message) -> bool:
        """Returns whether the message becomes a dead letter."""
        return message in self and self._by_id[message.msg_id][0] is None

    def dump(self) -> str | None:
        """Returns the failures as text, for `load`; None if there are none."""
        failures = [
            (id, None if after is None else after.total_seconds(), reason)
            for id, (after, reason) in self._by_id.items()
        ]
        return json.dumps(failures) if failures else None

    def load(self, dumped: str | None) -> None:
        """Replaces the failures with those of another attempt at the batch."""
        self._by_id = {
            id: (None if seconds is None else timedelta(seconds=seconds), reason)
            for id, seconds, reason in json.loads(dumped or "[]")
        }

    def write_to(self, batch: Batch) -> None:
        """Passes the failures to the batch, which writes them at the ack."""
        groups: dict[timedelta | None, list[tuple[int, str | None]]] = defaultdict(list)
        for msg_id, (after, reason) in self._by_id.items():
            groups[after].append((msg_id, reason))
        for after, failures in groups.items():
            ids: Sequence[int] = [msg_id for msg_id, _ in failures]
            reasons = [reason for _, reason in failures]
            if after is None:
                batch.dead_letter(ids, reason=reasons)
            else:
                batch.nack(ids, retry_after=after, reason=reasons)


@dataclass(slots=True, unsafe_hash=True)
class Delivery(Message):
    """A message that a handler gets. It counts as handled when the handler returns normally.

    Attributes:
        queue: the queue's name.
        failed: where `nack` and `dead_letter` record the message.
    """

    queue: str = ""
    failed: Any = field(default=None, repr=False, compare=False)

    def nack(self, *, retry_after: timedelta | None = None, reason: str | None = None) -> None:
        """Schedules another delivery of the message; once its retries run out, it is dead-lettered.

        Args:
            retry_after: how long to wait; the consumer's `retry_after` by default.
            reason: stored with the dead letter, if the message becomes one.

        Raises:
            InvalidArgument: if `retry_after` is not a timedelta, or is negative.
        """
        self.failed.nack(self, retry_after, reason)

    def dead_letter(self, reason: str) -> None:
        """Makes the message a dead letter."""
        self.failed.dead_letter(self, reason)


_delivery: Callable[..., Delivery] = Delivery


class Pages:
    """Iterates over the messages of a batch in order, as `Delivery` objects, a page at a time.

    A million small messages take 700 MB as objects, so all pages but the last are pickled.

    Attributes:
        types: the types of all messages.
        failed: records which messages failed.
    """

    def __init__(self, rows: Iterable[list[Row]], queue: str, failed: FailedMessages) -> None:
        self.types: set[str | None] = set()
        self._packed: list[bytes] = []
        self._last: list[Row] = []
        self.failed = failed
        self._queue = queue
        for page in rows:
            self.types.update(row[1] for row in page)
            if self._last:
                self._packed.append(pickle.dumps(self._last))
            self._last = page

    def __iter__(self) -> Iterator[list[Delivery]]:
        for page in chain(map(pickle.loads, self._packed), [self._last]):
            yield [_delivery(*row, self._queue, self.failed) for row in page]


def _storable(reason: str | None) -> str | None:
    """Returns a text that the database can store, so that no reason prevents the ack."""
    if reason is None:
        return None
    return reason[:_LONGEST_REASON].replace("\0", "").encode(errors="replace").decode()
