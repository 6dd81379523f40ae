"""The part of the client that registers consumers, and moves and unregisters them."""

from . import calls
from .calls.call import Call, Steps, first
from .models import Sought
from .operation import operation
from .positions import Position, write_position


class Registrations:
    """The operations on registrations of consumers."""

    @operation
    def register_consumer(
        self, queue: str, consumer: str, *, start_at: Position = "latest"
    ) -> Call[bool]:
        """Registers a consumer; returns False if it is registered, which leaves it where it is.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            start_at: `latest`, the last tick; `earliest`, the oldest retained tick; the number of a
                tick, after which it starts; or a time with a zone, from which on it gets all events
                that were committed.

        Raises:
            InvalidArgument: if `start_at` is no position, or no longer retained.
        """
        return Call(
            "select pgque.register_consumer(%s, %s, %s) = 1",
            (queue, consumer, write_position(start_at)),
            first,
        )

    @operation
    def seek(
        self, queue: str, consumer: str, position: Position, *, skip: bool = False
    ) -> Call[Sought]:
        """Moves a registered consumer, forward or back. Its retries and dead letters stay.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            position: as `start_at` of `register_consumer`.
            skip: allows it to pass over events, which it then never gets.

        Raises:
            SkipsEvents: if it would pass over events; the message has their number.
            ConsumerInUse: if a batch of the consumer is open.
            InvalidArgument: if `position` is none, or no longer retained.
        """
        return Call(
            "select tick_id, skipped_events, repeated_events from pgque.seek(%s, %s, %s, %s)",
            (queue, consumer, write_position(position), skip),
            lambda rows: Sought(*rows[0]),
        )

    @operation
    def unregister_consumer(
        self, queue: str, consumer: str, *, keep_dead_letters: bool = False
    ) -> Steps[None]:
        """Unregisters a consumer and deletes its scheduled retries and its dead letters.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            keep_dead_letters: keeps the dead letters. They can be replayed once the consumer is
                registered again.
        """
        was_registered = yield Call(
            "select pgque.unregister_consumer(%s, %s, %s) = 1",
            (queue, consumer, keep_dead_letters),
            first,
        )
        if not was_registered:
            yield calls.consumers.check_consumer(queue, consumer)
