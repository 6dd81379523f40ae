"""Windows on the partitions page of a live Dagster: backfills, and materializing again."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest

from demo.graphql import Run
from pgque_dagster.client import Client
from tests.support import live_windows
from tests.support.live import WARM, Live, running
from tests.support.live_partitions import (
    backfill,
    backfill_status,
    materialize,
    partition_statuses,
    step_failure,
)
from tests.support.live_project import CONSUMERS, QUEUE
from tests.support.live_windows import AT_ONCE, HOURLY
from tests.support.queues import connect, drain, rotate, stored_payloads
from tests.support.windows import set_time_of_last_tick, tick_at

pytestmark = pytest.mark.slow

GONE, PARTLY_GONE, *RETAINED = (f"2026-01-01-0{hour}:00" for hour in range(5))

# How many events are committed before the tick of each time; 25,000 are read by the executors.
SENT = {"00:30": 3, "01:30": 3, "02:10": 4, "02:50": 2, "03:00": 1, "03:30": 25_000, "04:30": 5}
LATE = "sent before 03:30, committed after it"


def events(time: str) -> list[str]:
    return [f"{time}/{number}" for number in range(SENT[time])]


COMMITTED = {
    RETAINED[0]: Counter([*events("02:10"), *events("02:50")]),
    RETAINED[1]: Counter([*events("03:00"), *events("03:30")]),
    RETAINED[2]: Counter([*events("04:30"), LATE]),
}


@pytest.fixture(scope="module")
def windows() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=WARM, module=live_windows.__name__) as live,
    ):
        send(live)
        yield live


def send(live: Live) -> None:
    """Sends the events of five hours. Those of two are consumed, and then removed by rotation."""
    with Client(live.url) as client, connect(live.url) as db:
        set_time_of_last_tick(client, "00:00", QUEUE)
        for time in ("00:30", "01:30"):
            publish(client, time)
        for consumer in CONSUMERS:
            drain(db, QUEUE, consumer)
        for _ in range(3):
            live.wait(lambda: rotate(db, QUEUE) == 1, "a rotation")
        assert stored_payloads(db, QUEUE) == set()

        for time in ("02:10", "02:50", "03:00"):
            publish(client, time)
        with psycopg.connect(live.url) as late:
            late.execute("select pgque.send(%s, %s::text)", (QUEUE, payload(LATE)))
            publish(client, "03:30")
        publish(client, "04:30")
        tick_at(client, "05:30", QUEUE)


def publish(client: Client, time: str) -> None:
    client.send_batch(QUEUE, [payload(event) for event in events(time)])
    tick_at(client, time, QUEUE)


def payload(event: str) -> str:
    return f'{{"event": "{event}"}}'


def test_a_backfill_stores_each_window_and_is_red_where_its_ticks_are_gone(windows: Live) -> None:
    before = positions(windows)

    status, runs = finished_backfill(windows, HOURLY, [GONE, PARTLY_GONE, *RETAINED])

    red = {run.tags["dagster/partition"]: run for run in runs if run.status == "FAILURE"}
    assert status == "COMPLETED_FAILED"
    assert sorted(run.tags["dagster/partition"] for run in runs) == [GONE, PARTLY_GONE, *RETAINED]
    assert sorted(red) == [GONE, PARTLY_GONE]
    for partition, what in ((GONE, "is gone"), (PARTLY_GONE, "is partly gone")):
        told = step_failure(windows.dagster, red[partition].id)
        assert re.search(f"partition {partition}: the window from .* {what}", told), told
        assert "set the queue's parameter retention" in told
    assert partition_statuses(windows.dagster, HOURLY) == [
        (GONE, PARTLY_GONE, "FAILED"),
        (RETAINED[0], RETAINED[-1], "MATERIALIZED"),
    ]
    assert stored(windows, HOURLY) == COMMITTED
    assert positions(windows) == before


def test_a_partition_that_is_materialized_again_has_its_events_once(windows: Live) -> None:
    before = positions(windows)

    finished_run(windows, materialize(windows.dagster, HOURLY, RETAINED[1]))
    first = files(windows, HOURLY, RETAINED[1])
    finished_run(windows, materialize(windows.dagster, HOURLY, RETAINED[1]))
    second = files(windows, HOURLY, RETAINED[1])

    assert first.isdisjoint(second)
    assert stored(windows, HOURLY)[RETAINED[1]] == COMMITTED[RETAINED[1]]
    assert positions(windows) == before


def test_a_backfill_in_one_run_stores_each_window(windows: Live) -> None:
    before = positions(windows)

    status, runs = finished_backfill(windows, AT_ONCE, RETAINED)

    assert status == "COMPLETED_SUCCESS"
    assert [run.status for run in runs] == ["SUCCESS"]
    assert partition_statuses(windows.dagster, AT_ONCE) == [
        (RETAINED[0], RETAINED[-1], "MATERIALIZED")
    ]
    assert stored(windows, AT_ONCE) == COMMITTED
    assert positions(windows) == before


def finished_backfill(live: Live, asset: str, partitions: list[str]) -> tuple[str, list[Run]]:
    """Launches a backfill and waits for its end; returns its status and its runs."""
    number = backfill(live.dagster, asset, partitions)
    live.wait(
        lambda: backfill_status(live.dagster, number).startswith(
            ("COMPLETED", "FAILED", "CANCELED")
        ),
        "the backfill's end",
    )
    return backfill_status(live.dagster, number), live.dagster.runs({"dagster/backfill": number})


def finished_run(live: Live, run_id: str) -> None:
    """Waits for the end of a run that must succeed."""

    def status() -> str:
        return next(run.status for run in live.dagster.runs({}) if run.id == run_id)

    live.wait(lambda: status() in ("SUCCESS", "FAILURE", "CANCELED"), "the run's end")
    assert status() == "SUCCESS", step_failure(live.dagster, run_id)


def stored(live: Live, asset: str) -> dict[str, Counter[str]]:
    """How often each event is stored, by partition."""
    rows = ds.dataset(live.output / asset, partitioning="hive").to_table(["batch_id", "event"])
    partitions = {number_of(key): key for key in [GONE, PARTLY_GONE, *RETAINED]}
    found: dict[str, Counter[str]] = {}
    for number, event in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(partitions[int(number)], Counter())[event] += 1
    return found


def files(live: Live, asset: str, partition: str) -> set[str]:
    """The files of a partition that readers see."""
    return set(ds.dataset(live.output / asset / f"batch_id={number_of(partition)}").files)


def number_of(partition: str) -> int:
    """The partition's number where it is stored, such as 202601010200."""
    return int(re.sub(r"\D", "", partition))


def positions(live: Live) -> list[tuple[str, int | None, int | None]]:
    """Where each consumer stands, and its open batch."""
    with Client(live.url) as client:
        return [(info.name, info.last_tick_id, info.batch_id) for info in client.consumers(QUEUE)]
