"""Partitioned consumers: one worker at a time handles the events of a partition key, in order.

docs/partitions.md has the guarantees.
"""

from datetime import timedelta

from .client import Client
from .models import Message
from .operation import Call, first, nothing
from .ranges import Position, check_interval, write_position


def subscribe_slots(
    queue: str, consumer: str, slots: int, start_at: Position | None = None
) -> Call[bool]:
    """Subscribes all slots of a consumer; False if it had slots. Refuses another number of them.

    Raises:
        InvalidArgument: if `start_at` is no position.
    """
    start = None if start_at is None else write_position(start_at)
    return Call(
        "select pgque.subscribe_slots(%s, %s, %s, %s) = 1", (queue, consumer, slots, start), first
    )


def repartition(queue: str, consumer: str, slots: int) -> Call[int]:
    """Asks for another number of slots; how many slots have not arrived where that happens."""
    return Call("select pgque.repartition(%s, %s, %s)", (queue, consumer, slots), first)


class PartitionedConsumer:
    """A consumer whose events are distributed over slots by partition key. Workers claim slots.

    Args:
        client: the database.
        queue: the queue's name.
        consumer: the consumer's name.
        slots: the number of slots, 1 to 256; the first `subscribe` fixes it.

    Methods raise subclasses of `PgqueError`, such as `InvalidArgument` if the consumer has another
    number of slots.
    """

    def __init__(self, client: Client, queue: str, consumer: str, *, slots: int) -> None:
        self.client = client
        self.queue = queue
        self.consumer = consumer
        self.slots = slots

    def subscribe(self, slot: int) -> None:
        """Subscribes a slot, from 0. Calling it again changes nothing.

        All slots begin at the tick of the first subscription, so a slot that is subscribed later
        misses no event.
        """
        params = (self.queue, self.consumer, slot, self.slots)
        self.client.run(Call("select pgque.subscribe_slot(%s, %s, %s, %s)", params, nothing))

    def unsubscribe(self, slot: int) -> None:
        """Removes a slot, its unread events, its retries and its dead letters."""
        params = (self.queue, self.consumer, slot)
        self.client.run(Call("select pgque.unsubscribe_slot(%s, %s, %s)", params, nothing))

    def repartition(self, slots: int) -> int:
        """Gives the consumer another number of slots, and this object with it.

        The number changes once all slots have finished the events up to one tick, which the slots
        stop at meanwhile. So let the workers go on, and call it again until it returns 0. What was
        asked for is forgotten after 10 minutes. Workers then claim slots of the new number; calls
        for an earlier slot fail.

        Returns:
            How many slots still have events before the change; 0 once the number has changed.
        """
        behind = self.client.run(repartition(self.queue, self.consumer, slots))
        if behind == 0:
            self.slots = slots
        return behind

    def claim(
        self, slot: int, *, worker: str, ttl: timedelta = timedelta(seconds=30)
    ) -> "Slot | None":
        """Takes a slot's lease, or renews it for the worker that holds it.

        Args:
            slot: the slot's number.
            worker: the worker's name. It must be unique: two workers of one name share the lease.
            ttl: how long the lease lasts without renewal. `receive`, `nack` and `ack` renew it.

        Returns:
            The claimed slot, or None while another worker holds it or it has a whole batch open.
        """
        check_interval("ttl", ttl)
        params = (self.queue, self.consumer, slot, worker, ttl)
        sql = Call[int | None]("select pgque.claim_slot(%s, %s, %s, %s, %s)", params, first)
        epoch = self.client.run(sql)
        return None if epoch is None else Slot(self, slot, worker, epoch, ttl)


class Slot:
    """A slot under a worker's lease. `PartitionedConsumer.claim` makes it.

    `receive`, `nack` and `ack` raise `LeaseLost` once another worker has the slot.

    Attributes:
        number: the slot's number.
        worker: the name of the worker that holds the slot.
        epoch: grows with every change of the holder.
    """

    def __init__(
        self, of: PartitionedConsumer, number: int, worker: str, epoch: int, ttl: timedelta
    ) -> None:
        self.number = number
        self.worker = worker
        self.epoch = epoch
        self._client = of.client
        self._claim = (of.queue, of.consumer, number, of.slots, worker)
        self._ttl = ttl

    def receive(self, limit: int = 100) -> list[Message]:
        """Returns the slot's next events in order, at most `limit`; the same events until the ack.

        The key is in `extra1`. While there are no events, call it again before half of the lease's
        time is over.
        """
        return self._client.run(
            Call(
                "select msg_id, type, payload, retry_count, created_at, "
                "extra1, extra2, extra3, extra4 "
                "from pgque.receive_partitioned(%s, %s, %s, %s, %s, %s)",
                (*self._claim, limit),
                lambda rows: [Message(*row) for row in rows],
            )
        )

    def nack(
        self,
        msg_id: int,
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: str | None = None,
    ) -> None:
        """Schedules an event of the page for another delivery, or dead-letters it without retries.

        Takes effect at once. Later events of its key do not wait for it.

        Args:
            msg_id: the id of the event.
            retry_after: how long to wait before the next delivery.
            reason: stored with the dead letter, if the event becomes one.

        Raises:
            EventNotInBatch: if the event is not among those that `receive` returned last.
            InvalidArgument: if `retry_after` is no length of time, or negative.
        """
        check_interval("retry_after", retry_after, is_zero_allowed=True)
        self._client.run(
            Call(
                "select pgque.nack_partitioned(%s, %s, %s, %s, %s, row(%s, null, null, null, null,"
                " null, null, null, null, null)::pgque.message, %s, %s)",
                (*self._claim, msg_id, retry_after, reason),
                nothing,
            )
        )

    def ack(self) -> bool:
        """Finishes the events that `receive` returned last; returns False if there are none."""
        sql = "select pgque.ack_partitioned(%s, %s, %s, %s, %s) = 1"
        return self._client.run(Call[bool](sql, self._claim, first))

    def release(self) -> bool:
        """Releases the slot for the next worker; returns False if it was lost before.

        Events that were received and not acked are delivered again, to the next holder.
        """
        queue, consumer, number, _, worker = self._claim
        sql = "select pgque.release_slot(%s, %s, %s, %s)"
        return self._client.run(Call[bool](sql, (queue, consumer, number, worker), first))
