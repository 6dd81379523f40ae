"""What each consumer may see, in plain Python.

A queue is the list of its committed events, in the order of the commits. A tick is a place in this
list: what was committed before it is in the batches up to the tick. Where a tick overlapped other
statements, its place is only known to lie between two.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Divergence(Exception):
    """The engine did what the model does not allow. What notes something may raise it."""


class Sent(NamedTuple):
    """An event that somebody sent, with a payload that no other one has."""

    queue: str
    payload: str
    key: str | None = None


class Event(NamedTuple):
    """An event as a batch has it."""

    id: int
    payload: str
    retry: int


class Place(NamedTuple):
    """Where a tick lies in the list of a queue's events: what comes before `low` is behind it."""

    low: int
    high: int


BEGINNING = Place(0, 0)


class Queue:
    """The events of a queue, and its ticks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Sent] = []
        # Payloads that were sent for a time, and come into the queue at some moment.
        self.late: set[str] = set()
        # Batch ids that a promotion lost, under which sinks may have stored results.
        self.lost: set[int] = set()
        self._ticks: list[int] = []
        self._places: dict[int, Place] = {}

    def add_tick(self, number: int, place: Place) -> None:
        """Notes where a tick lies; of a tick that is known already, that stands."""
        if number in self._places:
            return
        at = bisect_left(self._ticks, number)
        self._ticks.insert(at, number)
        self._places[number] = place

    def place(self, tick: int) -> Place:
        """Returns the place of a tick, from those of its neighbours if nobody saw it made."""
        if tick in self._places:
            return self._places[tick]
        at = bisect_right(self._ticks, tick)
        low = self._places[self._ticks[at - 1]].low if at else 0
        high = self._places[self._ticks[at]].high if at < len(self._ticks) else len(self.log)
        return Place(low, high)


@dataclass
class Batch:
    """An open batch: its events, and those that were given back or up."""

    id: int
    events: Sequence[Event]
    settled: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    # Those that are taken out of it now.
    leaving: set[int] = field(default_factory=set)

    def unsettled(self) -> list[Event]:
        """Returns the events that finishing the batch applies."""
        return [event for event in self.events if event.id not in self.settled]

    def staying(self) -> list[Event]:
        """Returns the events that it has once others have left it."""
        return [event for event in self.events if event.id not in self.leaving]


class Consumer:
    """What a consumer must get, what it got, and what it gave up.

    Args:
        queue: its queue.
        name: its name.
        start: where it was registered.
        wants: which events it gets, of those in the queue; all by default.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        start: Place = BEGINNING,
        wants: Callable[[Sent], bool] = lambda _: True,
    ) -> None:
        self.queue = queue
        self.name = name
        self._wants = wants
        self._seen = start.low
        # Payloads that must come, with their places; those that may come; those given back.
        self._due: dict[str, int] = {}
        self._may = {sent.payload for sent in queue.log[start.low : start.high]} | queue.late
        self._late: set[str] = set()
        self.again: dict[str, int] = {}
        self.dead: set[str] = set()
        self.applied: set[str] = set()
        # Payloads that may come any number of times, because the consumer was moved.
        self.free: set[str] = set()
        self._given: set[str] = set()
        self.open: dict[int, Batch] = {}
        self._finished: dict[int, Batch] = {}

    def __repr__(self) -> str:
        return f"{self.queue.name}/{self.name}"

    def expect_late(self, sent: Sent) -> None:
        """Expects an event in any batch from now on, such as one that is sent at a time."""
        if self._wants(sent):
            self._late.add(sent.payload)

    def check(self, to_tick: int, events: Sequence[Event], *, alone: bool = True) -> None:
        """Compares a batch that is opened next with what must and may be in it.

        Args:
            to_tick: the batch's last tick.
            events: what it has.
            alone: whether nobody opens a batch of this consumer at the same time; otherwise what
                is missing may be in theirs, and is asked for by the next check.

        Raises:
            Divergence: if it lacks an event, or has one that is not owed.
        """
        place = self.queue.place(to_tick)
        due = {**self._due, **self._between(self._seen, place.high)}
        events = [event for event in events if event.payload not in self.free]
        for event in events:
            owed = event.payload in self.again or event.payload in self._late
            if event.payload not in due and not owed and event.payload not in self._may:
                raise Divergence(f"{self} got {event}, which was {self._whose(event.payload)}")
        got = {event.payload for event in events}
        if len(got) < len(events):
            raise Divergence(f"{self} got an event twice in one batch: {list(events)}")
        if list(events) != sorted(events):
            raise Divergence(f"{self} got the events of a batch in no order: {list(events)}")
        lost = [payload for payload, at in due.items() if at < place.low and payload not in got]
        if lost and alone:
            raise Divergence(f"{self} passed over {lost} up to tick {to_tick}")

    def _between(self, low: int, high: int) -> dict[str, int]:
        log = self.queue.log
        return {
            log[at].payload: at
            for at in range(low, high)
            if self._wants(log[at]) and log[at].payload not in self._may | self.free
        }

    def _whose(self, payload: str) -> str:
        if payload in self.applied:
            return "finished before"
        if payload in self.dead:
            return "given up"
        if self.has_open(payload):
            return "in another open batch"
        if any(sent.payload == payload for sent in self.queue.log):
            return "not to come so far"
        return "never committed here"

    def batch_ids(self) -> set[int]:
        """Returns the ids of all batches that it got."""
        return {*self.open, *self._finished}

    def unfinished(self) -> set[str]:
        """Returns the payloads that a consumer gets which goes on from its position now."""
        rest = self._between(self._seen, len(self.queue.log))
        events = [event for batch in self.open.values() for event in batch.unsettled()]
        return {*self._due, *rest, *(event.payload for event in events)} - self.free

    def has_open(self, payload: str) -> bool:
        """Says whether an open batch has an event."""
        return any(
            payload == event.payload for batch in self.open.values() for event in batch.events
        )

    def with_some_of(self, batch: int, events: Iterable[Event]) -> list[int]:
        """Returns the other open batches that have some of a batch's events, or none as well."""
        payloads = {event.payload for event in events}

        def is_alike(other: Batch) -> bool:
            theirs = {event.payload for event in other.events}
            return not payloads.isdisjoint(theirs) or payloads == theirs

        return [other.id for other in self.open.values() if other.id != batch and is_alike(other)]

    def opened(
        self, batch: int, to_tick: int, events: Sequence[Event], *, alone: bool = True
    ) -> Batch:
        """Notes an open batch; one that was open before must be the same."""
        known = self.open.get(batch) or self._finished.get(batch)
        if known:
            # An event that a seek back and a retry deliver in one batch comes twice, in any order.
            if known.leaving and sorted(events) == sorted(known.staying()):
                self.set_aside(known)
            ids = [event.id for event in events]
            if sorted(known.events) != sorted(events) or ids != sorted(ids):
                lost = [event for event in known.events if event not in events]
                new = [event for event in events if event not in known.events]
                raise Divergence(
                    f"batch {batch} of {self} lost {lost} and got {new}: it has {list(events)}"
                )
            return known
        if batch in self.queue.lost:
            raise Divergence(f"{self} got batch {batch} again, an id of before the promotion")
        self.check(to_tick, events, alone=alone)
        self._due.update(self._between(self._seen, self.queue.place(to_tick).high))
        self._seen = max(self._seen, self.queue.place(to_tick).high)
        for event in events:
            self._due.pop(event.payload, None)
            self.again.pop(event.payload, None)
            self._late.discard(event.payload)
            self._may.discard(event.payload)
        self.open[batch] = Batch(batch, events)
        return self.open[batch]

    def taken_over(self, batch: int, by: int, events: Sequence[Event]) -> None:
        """Notes that an open batch has a new id, under which a colleague holds it."""
        held = self._held(batch)
        if list(held.events) != list(events):
            raise Divergence(
                f"batch {batch} of {self} was {held.events}, and as {by} it is {events}"
            )
        self._finished[batch] = self.open.pop(batch)
        self.open.setdefault(by, Batch(by, events, held.settled))

    def give_back(self, batch: int, ids: Iterable[int], *, max_retries: int, dead: bool) -> None:
        """Notes events of an open batch that come again, or are dead letters from now on."""
        held = self._held(batch)
        for event in held.events:
            if event.id not in ids or event.payload in self.dead:
                continue
            self._given.add(event.payload)
            if event.payload in self.free:
                continue
            held.settled.add(event.id)
            if dead or event.retry >= max_retries:
                self.dead.add(event.payload)
                self.again.pop(event.payload, None)
            else:
                self.again[event.payload] = event.retry + 1

    def set_aside(self, held: Batch) -> None:
        """Notes that the events that are leaving a batch are dead letters, and no longer in it."""
        for event in held.events:
            if event.id in held.leaving:
                self.dead.add(event.payload)
                self._given.add(event.payload)
                self.again.pop(event.payload, None)
        held.events = held.staying()
        held.leaving.clear()

    def finish(self, batch: int) -> None:
        """Notes that a batch was acked: its events count as applied."""
        held = self._held(batch)
        for event in held.unsettled():
            if event.payload in self.applied - self.free:
                raise Divergence(f"{self} applied {event.payload!r} twice")
            self.applied.add(event.payload)
        self._finished[batch] = self.open.pop(batch)

    def apply(self, batch: int, ids: Iterable[int]) -> None:
        """Notes that some events of an open batch were acked, as those of a page are."""
        held = self._held(batch)
        for event in held.unsettled():
            if event.id in ids:
                if event.payload in self.applied:
                    raise Divergence(f"{self} applied {event.payload!r} twice")
                self.applied.add(event.payload)
                held.settled.add(event.id)
                held.acked.add(event.id)

    def check_page(self, held: Batch, events: Sequence[Event], page: Sequence[Event]) -> None:
        """Compares a page with what is left of its batch."""
        # Those that were given back may be in it until an event behind them is acked.
        rest = held.unsettled()
        events = [event for event in events if event.id not in held.settled]
        page = [event for event in page if event.id not in held.settled]
        if events != rest or page != rest[: len(page)]:
            raise Divergence(
                f"{self} got the page {page} of batch {held.id} with {events}, and {rest} is left"
            )

    def finish_pages(self, batch: int) -> None:
        """Notes that the next batch came, so all pages of this one must have been acked."""
        held = self._held(batch)
        if left := held.unsettled():
            raise Divergence(f"{self} left batch {batch} with {left} in no page")
        self._finished[batch] = self.open.pop(batch)

    def end_unacked(self, batch: int) -> Batch:
        """Notes that a batch was ended without an ack; returns it."""
        held = self._held(batch)
        self._finished[batch] = self.open.pop(batch)
        return held

    def _held(self, batch: int) -> Batch:
        if batch not in self.open:
            raise Divergence(f"{self} holds no batch {batch}, and the engine let it finish that")
        return self.open[batch]

    def replay(self, payloads: Iterable[str]) -> None:
        """Expects dead letters again."""
        for payload in payloads:
            self.dead.discard(payload)
            self.again[payload] = 0

    def moved(self, tick: int) -> "Consumer":
        """Returns the consumer as it is after it was moved to a tick.

        What it gave back is in the queue again, for it alone, so it may come once more, or be
        passed over.
        """
        fresh = Consumer(self.queue, self.name, self.queue.place(tick), self._wants)
        fresh.free = {*self.free, *self._given, *self.again, *self._late, *self.queue.late}
        return fresh

    def inherit(self, slots: Sequence["Consumer"], tick: int) -> None:
        """Takes over what it wants of the slots that stood at a tick before there were others."""
        sent = {each.payload: each for each in self.queue.log}
        self._seen = max(self.queue.place(tick).high, *(slot._seen for slot in slots))

        def mine(payloads: Iterable[str]) -> set[str]:
            unknown = Sent(self.queue.name, "")  # It was sent for later, without a key.
            return {each for each in payloads if self._wants(sent.get(each, unknown))}

        for slot in slots:
            if slot.open:
                raise Divergence(f"{slot} was divided again and has {slot.open}")
            due = {**slot._due, **slot._between(slot._seen, self._seen)}
            self._due |= {payload: due[payload] for payload in mine(due)}
            self.again |= {payload: slot.again[payload] for payload in mine(slot.again)}
            for name in ("_may", "_late", "dead", "applied", "free", "_given"):
                getattr(self, name).update(mine(getattr(slot, name)))
            self._finished |= slot._finished

    def check_all_came(self) -> None:
        """Raises `Divergence` if the queue is drained and something never came."""
        rest = self._between(self._seen, len(self.queue.log))
        missing = [*self._due, *rest, *self.again, *self._late]
        if missing:
            raise Divergence(f"{self} never got {missing}")
