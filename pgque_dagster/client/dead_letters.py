"""Dead letters: set events aside as dead letters; list, show, replay and purge them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from .batch import NO_LIMITS, has_events
from .errors import BatchNotOpen
from .holder import ConsumerState, Holder, consumer_states
from .models import DeadLetter, DeadLetterCount, SetAside
from .operation import Call, Row, Steps, first, operation
from .queues import check_queue
from .ranges import check_interval
from .registrations import check_consumer


class DeadLetters:
    """The methods of a client for dead letters."""

    @operation
    def dead_letter_counts(self, queue: str) -> Call[list[DeadLetterCount]]:
        """Counts a queue's dead letters by consumer and reason, the highest count first."""
        return Call(
            "select consumer_name, reason, dead_letters, oldest from pgque.dlq_summary(%s)",
            (queue,),
            lambda rows: [DeadLetterCount(*row) for row in rows],
        )

    @operation
    def dead_letters(self, queue: str, limit: int = 100) -> Steps[list[DeadLetter]]:
        """Returns a queue's newest dead letters."""
        yield check_queue(queue)
        found: list[DeadLetter] = yield Call(
            "select dl_id, dl_time, dl_reason, ev_id, ev_retry, ev_type, ev_data "
            "from pgque.dlq_inspect(%s, %s)",
            (queue, limit),
            lambda rows: [DeadLetter(*row) for row in rows],
        )
        return found

    @operation
    def set_events_aside(
        self, queue: str, consumer: str, event_ids: Sequence[int], *, reason: str
    ) -> Steps[SetAside]:
        """Makes events of a consumer's open batch dead letters and takes them out of the batch.

        The batch stays open, and later reads skip these events. An owner whose lease has expired
        can no longer ack the batch.

        Args:
            queue: the queue's name.
            consumer: the consumer's name. If several of its subconsumers or slots have open ones,
                the name of one: `revenue.1`, `revenue#3/8`.
            event_ids: ids of the events; events that are already set aside stay so.
            reason: stored with the dead letters.

        Raises:
            BatchNotOpen: if the consumer has no open batch, or several.
            BatchLeased: if the batch has a live lease; the error names its owner.
            EventNotInBatch: if an id is not in this batch; then no event is set aside.
        """
        states: list[ConsumerState] = yield consumer_states([(queue, consumer)], NO_LIMITS)
        if states[0].role is None:
            yield check_consumer(queue, consumer)
        batches = {
            Holder.of(state).name: state.batch_id for state in states if state.batch_id is not None
        }
        if len(batches) != 1:
            raise _not_one_batch(queue, consumer, batches)
        (batch_id,) = batches.values()
        count: int = yield Call(
            "select pgque.set_events_aside(%s, %s::bigint[], %s)",
            (batch_id, list(event_ids), reason),
            first,
        )
        has_others: bool = yield has_events(batch_id)
        return SetAside(batch_id, count, is_empty=not has_others)

    @operation
    def replay_dead_letter(self, dead_letter_id: int) -> Call[int]:
        """Sends a dead letter to its consumer again; returns the new event's id."""
        return Call("select pgque.dlq_replay(%s)", (dead_letter_id,), first)

    @operation
    def replay_dead_letters(
        self,
        queue: str,
        *,
        reason: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Call[tuple[int, int, str | None]]:
        """Replays the dead letters that match all given filters, the oldest first.

        A dead letter that cannot be replayed stays; the others are replayed.

        Args:
            queue: the queue's name.
            reason: a LIKE pattern for the reason.
            type: the type of the events.
            since: only dead letters of this time or later.
            limit: the maximum number to replay.

        Returns:
            The number replayed, the number not replayed, and the first error.

        Raises:
            CallRefused: if the queue accepts no events; all dead letters stay.
        """
        return Call(
            "select replayed, failed, first_error "
            "from pgque.dlq_replay_matching(%s, %s, %s, %s, null, %s)",
            (queue, reason, type, since, limit),
            lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
        )

    @operation
    def purge_dead_letters(self, queue: str, older_than: timedelta) -> Steps[int]:
        """Deletes dead letters older than an interval; returns the number deleted."""
        check_interval("older_than", older_than, is_zero_allowed=True)
        yield check_queue(queue)
        purged: int = yield Call("select pgque.dlq_purge(%s, %s)", (queue, older_than), first)
        return purged


def _not_one_batch(queue: str, consumer: str, batches: dict[str, int]) -> BatchNotOpen:
    if not batches:
        return BatchNotOpen(
            f"consumer {consumer} on queue {queue} has no open batch",
            "Only events of an open batch can be set aside.",
        )
    named = ", ".join(f"{batch_id} ({name})" for name, batch_id in batches.items())
    return BatchNotOpen(
        f"consumer {consumer} on queue {queue} has several open batches: {named}",
        "Pass the name of the one that has the events instead of the consumer's.",
    )


def exported(queue: str, dead_letter_id: int) -> Call[dict[str, object] | None]:
    """Returns all fields of one dead letter and of its event; None if there is none."""
    fields = (
        *("id", "consumer", "time", "reason", "event_id", "event_time", "retry_count", "type"),
        *("payload", "extra1", "extra2", "extra3", "extra4"),
    )

    def parse(rows: list[Row]) -> dict[str, object] | None:
        return dict(zip(fields, rows[0], strict=True)) if rows else None

    return Call(
        "select dl_id, consumer_name, dl_time, dl_reason, ev_id, ev_time, ev_retry, ev_type, "
        "ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.dlq_export(%s, %s, 1) "
        "where dl_id = %s",
        (queue, dead_letter_id - 1, dead_letter_id),
        parse,
    )
