"""What tests of the worker wait for."""

import time
from collections.abc import Callable

import dagster as dg

from pgque_dagster.client import Client

PATIENCE = 240.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.05)


def is_consumed(client: Client) -> bool:
    (info,) = client.consumers("orders")
    return info.batch_id is None and info.pending_events == 0


def statuses(instance: dg.DagsterInstance) -> list[str]:
    return sorted(run.status.value for run in instance.get_runs())
