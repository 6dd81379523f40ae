"""Dead letters: list, replay, purge."""

from datetime import datetime, timedelta

from ..intervals import check_interval
from ..models import DeadLetter, DeadLetterCount
from .call import Call, first


def dead_letter_counts(queue: str) -> Call[list[DeadLetterCount]]:
    """Dead letters by consumer and reason, most first."""
    return Call(
        "select consumer_name, reason, dead_letters, oldest, max_id from pgque.dlq_summary(%s)",
        (queue,),
        lambda rows: [DeadLetterCount(*row) for row in rows],
    )


def dead_letters(queue: str, limit: int) -> Call[list[DeadLetter]]:
    """The newest dead letters."""
    return Call(
        "select dl_id, dl_time, dl_reason, ev_id, ev_retry, ev_type, ev_data "
        "from pgque.dlq_inspect(%s, %s)",
        (queue, limit),
        lambda rows: [DeadLetter(*row) for row in rows],
    )


def replay_dead_letter(dead_letter_id: int) -> Call[int]:
    """Replays a dead letter to its consumer; the new event's id."""
    return Call("select pgque.dlq_replay(%s)", (dead_letter_id,), first)


def replay_dead_letters(
    queue: str,
    reason: str | None,
    type: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    max_id: int | None,
) -> Call[tuple[int, int, str | None]]:
    """Replays matching dead letters; how many, how many failed, and the first error."""
    return Call(
        "select replayed, failed, first_error "
        "from pgque.dlq_replay_matching(%s, %s, %s, %s, %s, %s, %s)",
        (queue, reason, type, since, until, limit, max_id),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def purge_dead_letters(queue: str, older_than: timedelta) -> Call[int]:
    """Dead letters deleted by age; how many."""
    check_interval("older_than", older_than, is_zero_allowed=True)
    return Call("select pgque.dlq_purge(%s, %s)", (queue, older_than), first)
