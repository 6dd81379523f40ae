"""Slots under a live Dagster: keys keep their order through kills and another number of slots."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.dataset as ds
import pytest

from pgque_dagster.client import Client
from tests.support.live.graphql import reload
from tests.support.live.instance import Live
from tests.support.live.points import AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE
from tests.support.live.project import KEYED, PARTED, SEEN, partitions_file
from tests.support.queues.events import tick
from tests.support.queues.sql import connect, rows
from tests.support.runner.waiting import in_threads

KEYS = [f"key {number}" for number in range(10)]


@contextmanager
def producing(url: str) -> Iterator[list[int]]:
    """Sends an event of each key again and again, with a number that grows; yields the numbers."""
    sent: list[int] = []
    is_over = threading.Event()

    def send() -> None:
        with Client(url) as client:
            while not is_over.wait(1.0):
                for key in KEYS:
                    client.send(KEYED, {"number": len(sent)}, partition_key=key)
                sent.append(len(sent))
                tick(client, KEYED)

    with in_threads(send, stop=is_over.set):
        yield sent


def slots(live: Live) -> list[tuple[str, bool]]:
    """The registered slots, and whether each has finished all that is there."""
    with Client(live.url) as client:
        return [
            (info.name, info.batch_id is None and not info.pending_events)
            for info in client.consumers(KEYED)
        ]


def succeeded(live: Live, of: int) -> set[str]:
    """The slots, of this many, that had a run which succeeded."""
    runs = live.dagster.runs({"pgque/consumer": PARTED})
    tags = [run.tags for run in runs if run.status == "SUCCESS"]
    return {tag["pgque/slot"] for tag in tags if tag["pgque/slot"].endswith(f"/{of}")}


@pytest.mark.slow
def test_keys_keep_their_order_through_kills_and_another_number_of_slots(live: Live) -> None:
    with connect(live.url) as db:
        db.execute(SEEN.encode())
    with producing(live.url) as sent:
        live.wait(lambda: len(succeeded(live, 2)) == 2, "a run of each of two slots")
        for point in (BEFORE_WRITE, AFTER_WRITE):
            live.kill_at(point, PARTED)
        partitions_file(live.output).write_text("3")
        reload(live.dagster)
        live.wait(lambda: len(succeeded(live, 3)) == 3, "a run of each of three slots")
        live.kill_at(BEFORE_ACK, PARTED)
    live.wait(lambda: all(done for _, done in slots(live)), "all events consumed")

    expected = [(key, number) for key in KEYS for number in sent]
    table = ds.dataset(live.output / PARTED).to_table(columns=["ev_extra1", "number"])
    stored = Counter(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    assert stored == Counter(expected)
    assert sorted(name for name, _ in slots(live)) == [f"{PARTED}#{n}/3" for n in range(3)]
    with connect(live.url) as db:
        for attempt in ("min", "max"):
            order = f"select key, number from seen group by 1, 2 order by key, {attempt}(at)"
            assert rows(db, order) == sorted(expected)
