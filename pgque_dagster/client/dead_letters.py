"""The part of the client that lists, replays, purges and exports dead letters."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from . import calls
from .calls.call import Call, Steps
from .models import DeadLetter, DeadLetterCount
from .operation import operation

if TYPE_CHECKING:
    from .client import Client

_PAGE = 1000


class DeadLetters:
    """The operations on dead letters."""

    @operation
    def dead_letter_counts(self, queue: str) -> Call[list[DeadLetterCount]]:
        """Counts a queue's dead letters by consumer and reason, the highest count first."""
        return calls.dead_letters.dead_letter_counts(queue)

    @operation
    def dead_letters(self, queue: str, limit: int = 100) -> Steps[list[DeadLetter]]:
        """Returns a queue's newest dead letters."""
        yield calls.queues.check_queue(queue)
        found: list[DeadLetter] = yield calls.dead_letters.dead_letters(queue, limit)
        return found

    @operation
    def replay_dead_letter(self, dead_letter_id: int) -> Call[int]:
        """Sends a dead letter to its consumer again; returns the new event's id."""
        return calls.dead_letters.replay_dead_letter(dead_letter_id)

    @operation
    def replay_dead_letters(
        self,
        queue: str,
        *,
        reason: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        max_id: int | None = None,
    ) -> Call[tuple[int, int, str | None]]:
        """Replays the dead letters that match all given filters, the oldest first.

        A dead letter that cannot be replayed stays; the others are replayed.

        Args:
            queue: the queue's name.
            reason: a LIKE pattern for the reason.
            type: the type of the events.
            since: only dead letters of this time or later.
            until: only dead letters before this time.
            limit: the maximum number to replay.
            max_id: only dead letters up to this id, so that several calls replay no event that was
                given up again meanwhile.

        Returns:
            The number replayed, the number not replayed, and the first error.

        Raises:
            QueueClosed: if the queue accepts no events; all dead letters stay.
        """
        return calls.dead_letters.replay_dead_letters(
            queue, reason, type, since, until, limit, max_id
        )

    @operation
    def purge_dead_letters(self, queue: str, older_than: timedelta) -> Steps[int]:
        """Deletes dead letters older than an interval; returns the number deleted."""
        yield calls.queues.check_queue(queue)
        purged: int = yield calls.dead_letters.purge_dead_letters(queue, older_than)
        return purged


@dataclass(frozen=True)
class ExportedDeadLetter:
    """A dead letter with all fields of its event.

    Attributes:
        consumer: the consumer that dead-lettered the event.
        time: when the event became a dead letter.
        event_time: when the event was sent.
        retry_count: how often the event was delivered before; None for the first delivery.
    """

    id: int
    consumer: str
    time: datetime
    reason: str | None
    event_id: int
    event_time: datetime
    retry_count: int | None
    type: str | None
    payload: str | None
    extra1: str | None
    extra2: str | None
    extra3: str | None
    extra4: str | None


def export_page(queue: str, after_id: int, limit: int) -> Call[list[ExportedDeadLetter]]:
    """The oldest dead letters with an id above `after_id`."""
    return Call(
        "select dl_id, consumer_name, dl_time, dl_reason, ev_id, ev_time, ev_retry, ev_type, "
        "ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.dlq_export(%s, %s, %s)",
        (queue, after_id, limit),
        lambda rows: [ExportedDeadLetter(*row) for row in rows],
    )


def export_dead_letters(
    client: "Client", queue: str, page: int = _PAGE
) -> Iterator[list[ExportedDeadLetter]]:
    """Yields all dead letters of a queue in pages, the oldest first.

    Raises:
        QueueNotFound: if there is no such queue.
    """
    after_id = 0
    while letters := client.run(export_page(queue, after_id, page)):
        yield letters
        after_id = letters[-1].id
