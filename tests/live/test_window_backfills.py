"""Windows on the partitions page of a live Dagster: backfills."""

import re
from collections import Counter

import pyarrow.dataset as ds
import pytest

from harness.graphql import Run
from pgque_dagster.client import Client
from tests.support.live.instance import Live
from tests.support.live.partitions import (
    backfill,
    backfill_status,
    partition_statuses,
    step_failure,
)
from tests.support.live.project import HOURLY, HOURS
from tests.support.queues.events import make_queue
from tests.support.queues.sql import connect, drain, rotate, stored_payloads
from tests.support.queues.windows import send_at_hours, tick_at

GONE, *RETAINED = (f"2026-01-01-0{hour}:00" for hour in (0, 2, 3))


@pytest.mark.slow
def test_a_backfill_stores_each_window_and_is_red_where_its_ticks_are_gone(live: Live) -> None:
    send(live)

    status, runs = finished_backfill(live, HOURLY, [GONE, *RETAINED])

    assert status == "COMPLETED_FAILED"
    red = [run for run in runs if run.status == "FAILURE"]  # with Dagster's own retries
    assert {run.tags["dagster/partition"] for run in red} == {GONE}
    told = step_failure(live.dagster, red[0].id)
    assert re.search(f"partition {GONE}: the window from .* is gone", told), told
    assert "set the queue's parameter retention" in told
    assert {run.tags["dagster/partition"] for run in runs} == {GONE, *RETAINED}
    assert partition_statuses(live.dagster, HOURLY) == [
        (GONE, GONE, "FAILED"),
        (RETAINED[0], RETAINED[-1], "MATERIALIZED"),
    ]

    assert stored(live, HOURLY) == {202601010200: {"c": 1, "d": 1}, 202601010300: {"e": 1}}


def send(live: Live) -> None:
    """Sends the events of three hours. Those of one are consumed, and then removed by rotation."""
    with Client(live.url) as client, connect(live.url) as db:
        make_queue(client, HOURS, "a consumer")
        send_at_hours(client, [[payload("a"), payload("b")]], HOURS)
        drain(db, HOURS, "a consumer")
        for _ in range(3):
            live.wait(lambda: rotate(db, HOURS) == 1, "a rotation")
        assert stored_payloads(db, HOURS) == set()
        for time, *events in (("02:45", "c", "d"), ("03:45", "e"), ("04:30",)):
            client.send_batch(HOURS, [payload(event) for event in events])
            tick_at(client, time, HOURS)


def payload(event: str) -> str:
    return f'{{"event": "{event}"}}'


def finished_backfill(live: Live, asset: str, partitions: list[str]) -> tuple[str, list[Run]]:
    """Launches a backfill and waits for its end; returns its status and its runs."""
    number = backfill(live.dagster, asset, partitions)
    over = ("COMPLETED", "FAILED", "CANCELED")
    live.wait(lambda: backfill_status(live.dagster, number).startswith(over), "the backfill's end")
    return backfill_status(live.dagster, number), live.dagster.runs({"dagster/backfill": number})


def stored(live: Live, asset: str) -> dict[int, Counter[str]]:
    """How often each event is stored, by partition."""
    table = ds.dataset(live.output / asset, partitioning="hive").to_table(["batch_id", "event"])
    found: dict[int, Counter[str]] = {}
    for number, event in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found.setdefault(int(number), Counter())[event] += 1
    return found
