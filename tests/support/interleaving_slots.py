"""What the workers of a partitioned consumer do: the part of the interleaving about slots."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.interleaving_model import Consumer, Stage
from tests.support.interleaving_producers import Producing, few, pick, which
from tests.support.queues import rows, value
from tests.support.readings import EVENTS, Event, Message, as_message, read_every_way
from tests.support.slots import slot_of

SLOTS = 2
SLOT = f"%s, 'parted', %s, {SLOTS}, 'w'"


@dataclass
class Slot:
    """One slot of a consumer, its open batch, and the events of it that are acked."""

    consumer: Consumer
    number: int
    batch: int | None = None
    acked: set[int] = field(default_factory=set)

    @property
    def key(self) -> tuple[str, int]:
        return self.consumer.queue, self.number


class Partitioned(Producing):
    """The rules of the slots."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.slots: list[Slot] = []

    def subscribe_slots(self, queue: str) -> None:
        """Adds the consumer parted to a queue."""
        consumer = Consumer(queue, "parted")
        slots = [Slot(consumer, number) for number in range(SLOTS)]
        for slot in slots:
            sql = f"select pgque.subscribe_slot(%s, 'parted', %s, {SLOTS})"
            value(self.stage.db, sql, *slot.key)
            sql = "select pgque.claim_slot(%s, 'parted', %s, 'w', '1 day')"
            value(self.stage.db, sql, *slot.key)
        self.consumers.append(consumer)
        self.slots += slots

    def next_page(self, slot: Slot, maximum: int) -> list[Event]:
        """The events that a slot's worker gets, after they were compared with its batch."""
        db = self.stage.db
        sql = f"select * from pgque.receive_partitioned({SLOT}, %s)"
        page: list[Message] = rows(db, sql, *slot.key, maximum)
        if not page:
            return []
        (batch,) = {message[1] for message in page}
        if batch != slot.batch:
            slot.batch, slot.acked = batch, set()
            name = f"parted#{slot.number}/{SLOTS}"
            of = (slot.number, SLOTS)
            read_every_way(db, self.stage.reader, slot.consumer.queue, name, batch, 2, of)
        mine = [event for event in rows(db, EVENTS, batch) if event[0] not in slot.acked]
        assert {slot_of(db, event[6], SLOTS) for event in mine} <= {slot.number}
        expected = [as_message(event, batch) for event in mine[:maximum]]
        assert page == expected, "a page is not what comes next of the batch"
        return mine[:maximum]

    @rule(number=which, maximum=st.sampled_from([1, 3, 50]), nth=few, fails=st.booleans())
    def work_off_a_page(self, number: int, maximum: int, nth: int, fails: bool) -> None:
        slot = pick(self.slots, number)
        if slot is None:
            return
        page = self.next_page(slot, maximum)
        if not page:
            return
        failed = page[::nth] if fails else []
        with self.stage.db.transaction():
            for event in failed:
                message = as_message(event, slot.batch or 0)
                values = ", ".join(["%s"] * len(message))
                sql = f"select pgque.nack_partitioned({SLOT}, row({values})::pgque.message, '0')"
                value(self.stage.db, sql, *slot.key, *message)
            value(self.stage.db, f"select pgque.ack_partitioned({SLOT})", *slot.key)
        slot.acked |= {event[0] for event in page}
        slot.consumer.deliver(page)
        for event in failed:
            slot.consumer.fail(event, for_good=False)

    @rule(number=which)
    def look_at_a_page(self, number: int) -> None:
        """What is not acked comes again."""
        if slot := pick(self.slots, number):
            self.next_page(slot, 3)

    def drain_slot(self, slot: Slot) -> int:
        """How many events there were."""
        count = 0
        while page := self.next_page(slot, 1000):
            value(self.stage.db, f"select pgque.ack_partitioned({SLOT})", *slot.key)
            slot.acked |= {event[0] for event in page}
            slot.consumer.deliver(page)
            count += len(page)
        return count
