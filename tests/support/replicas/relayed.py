"""Replicas whose tables are captured from the WAL, by relays that are killed again and again."""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, Popen

import pytest

from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay
from tests.support.replicas import model, writers
from tests.support.replicas.replication import QUEUE, Replication
from tests.support.runner.waiting import in_threads

# The WAL lacks these values in updates that do not set them.
_LONG = """
alter table accounts add column long text;
alter table accounts alter long set storage external;
update accounts set long = repeat(md5(id::text), 100);
"""
_STATEMENTS = (
    "update accounts set long = repeat(md5({value}::text), 100) where id between {low} and {high}",
    "update accounts set long = repeat('x', {value}) where id between {low} and {high}",
)


@contextmanager
def relayed(replication: Replication, patch: pytest.MonkeyPatch, seed: int) -> Iterator[None]:
    """Has the tables of the model captured from the WAL, while relays are killed in the block."""
    # The WAL has no key that is deferrable.
    schema = writers.SCHEMA.replace(" deferrable", "") + _LONG
    patch.setattr(model, "SCHEMA", schema)
    statements = [
        each.replace("into accounts select", "into accounts (id, balance, note) select").replace(
            "values (n.id, {value}, null)", "values (n.id, {value}, null, repeat('y', 3000))"
        )
        for each in (*writers._STATEMENTS, *_STATEMENTS)
    ]
    patch.setattr(writers, "_STATEMENTS", statements)
    patch.setattr(replication, "tick", lambda: _tick(replication))
    begin_relay(replication.url, QUEUE)
    done, chance = threading.Event(), random.Random(seed)
    with in_threads(lambda: _relay(replication.url, done, chance), stop=done.set):
        yield


def _tick(replication: Replication) -> None:
    with Relay.of(replication.url, QUEUE) as relay:
        relay.tick()


def _relay(url: str, done: threading.Event, chance: random.Random) -> None:
    while not done.is_set():
        command = [sys.executable, "-m", "pgque_dagster.cli", "relay", QUEUE, "--url", url]
        with Popen(command, stderr=DEVNULL) as relay:
            done.wait(0.5 + 3 * chance.random())
            relay.kill()
