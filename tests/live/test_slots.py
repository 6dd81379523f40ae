"""Slots under a live Dagster: keys keep their order through kills and another number of slots."""

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from pgque_dagster.client import Client
from tests.support import live_slots
from tests.support.events import tick
from tests.support.live import Live, running
from tests.support.live_graphql import reload
from tests.support.live_points import AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE
from tests.support.live_project import QUEUE
from tests.support.live_slots import PARTED, SEEN, partitions_file
from tests.support.queues import connect, rows

pytestmark = pytest.mark.slow

KEYS = [f"key {number}" for number in range(10)]


@pytest.fixture
def slots() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), module=live_slots.__name__) as live,
    ):
        with connect(live.url) as db:
            db.execute(SEEN.encode())
        yield live


class Producer:
    """Sends an event of each key again and again, with a number that grows, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.sent = 0
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with Client(self._url) as client:
            while not self._over.wait(1.0):
                for key in KEYS:
                    client.send(QUEUE, {"number": self.sent}, partition_key=key)
                self.sent += 1
                tick(client, QUEUE)


def slots_of(live: Live) -> list[tuple[str, bool]]:
    """The registered slots, and whether each has finished all that is there."""
    with Client(live.url) as client:
        return [
            (info.name, info.batch_id is None and not info.pending_events)
            for info in client.consumers(QUEUE)
            if info.name.startswith(f"{PARTED}#")
        ]


def succeeded(live: Live, of: int) -> set[str]:
    """The slots, of this many, that had a run which succeeded."""
    runs = live.dagster.runs({"pgque/consumer": PARTED})
    return {
        slot
        for run in runs
        if run.status == "SUCCESS" and (slot := run.tags["pgque/slot"]).endswith(f"/{of}")
    }


def overlapping(live: Live) -> list[tuple[str, str]]:
    """Pairs of runs of one slot that ran at the same time."""
    runs = live.dagster.runs({"pgque/consumer": PARTED})
    spans = [
        (run.tags["pgque/slot"], run.start_time, run.end_time, run.id)
        for run in runs
        if run.start_time is not None and run.end_time is not None and run.status == "SUCCESS"
    ]
    return [
        (one[3], other[3])
        for one in spans
        for other in spans
        if one[0] == other[0] and one[3] < other[3] and one[1] < other[2] and other[1] < one[2]
    ]


def test_keys_keep_their_order_through_kills_and_another_number_of_slots(slots: Live) -> None:
    with Producer(slots.url) as producer:
        slots.wait(lambda: len(succeeded(slots, 2)) == 2, "a run of each of two slots")
        for point in (BEFORE_WRITE, AFTER_WRITE):
            slots.points.clear()
            slots.points.arm(PARTED, point, kill=True)
            slots.wait(lambda: slots.points.is_reached(PARTED), f"a run killed {point}")
        partitions_file(slots.output).write_text("3")
        reload(slots.dagster)
        slots.wait(lambda: len(succeeded(slots, 3)) == 3, "a run of each of three slots")
        slots.points.clear()
        slots.points.arm(PARTED, BEFORE_ACK, kill=True)
        slots.wait(lambda: slots.points.is_reached(PARTED), "a run killed before the ack")
    slots.wait(lambda: all(done for _, done in slots_of(slots)), "all events consumed")

    expected = [(key, number) for key in KEYS for number in range(producer.sent)]
    table = ds.dataset(slots.output / PARTED).to_table(columns=["ev_extra1", "number"])
    stored = Counter(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    assert stored == Counter(expected)
    assert sorted(name for name, _ in slots_of(slots)) == [f"{PARTED}#{n}/3" for n in range(3)]
    with connect(slots.url) as db:
        for attempt in ("min", "max"):
            order = f"select key, number from seen group by 1, 2 order by key, {attempt}(at)"
            assert rows(db, order) == sorted(expected)
    assert overlapping(slots) == []
