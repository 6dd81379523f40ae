"""Lets an evaluation wait for the next tick, because Dagster evaluates sensors rarely."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
from psycopg import sql

from ..client import Client
from ..client.errors import translated
from ..project.keys import WAITS


def listen(client: Client, queues: Sequence[str]) -> psycopg.Connection[Any]:
    """Makes the client's connection listen for each tick of the queues, and returns it.

    Behind a transaction pooler it gets no NOTIFY.
    """
    with client.transaction() as connection:
        for queue in queues:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(f"pgque_{queue}")))
    return connection


def is_notified(listener: psycopg.Connection[Any], seconds: float) -> bool:
    """Waits for a tick. Returns whether there was one since the last wait."""
    with translated():
        return bool(list(listener.notifies(timeout=seconds, stop_after=1)))


def share_of_wait(
    total: timedelta, repository: dg.RepositoryDefinition | None, cursor: str | None
) -> float:
    """Returns how many seconds one sensor may wait.

    Dagster evaluates sensors one after another, so the sensors of a code location share the time,
    and a new sensor does not wait: the one that captures its tables may come after it.

    Args:
        total: the time for all of them together.
        repository: the repository of the code location; None in a test, where no sensor waits.
        cursor: the sensor's cursor; None before its first evaluation.
    """
    if repository is None or cursor is None:
        return 0.0
    waiting = sum(WAITS in sensor.tags for sensor in repository.sensor_defs)
    return total.total_seconds() / max(waiting, 1)
