"""Exports all dead letters of a queue, page by page."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from .calls.call import Call

if TYPE_CHECKING:
    from .client import Client

_PAGE = 1000


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
