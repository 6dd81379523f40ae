"""Copies in tiny parts, of which each run reads a few."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.client.replicas.status import ReplicaStatus
from tests.support.replicas.replication import LakeReplication, Replication

ROWS = 16
# Each block has two or three rows.
TABLE = f"""
create table t (id int primary key, v text, n numeric(12, 2), small smallint, seen timestamp)
with (fillfactor = 30, autovacuum_enabled = off);
alter table t alter v set storage plain;
insert into t select n, repeat('x', 900), n / 4.0, n, '2026-01-01'
from generate_series(1, {ROWS}) n;
"""


def copy_in_parts(patch: pytest.MonkeyPatch, width: int = 4, seconds: float = 0.0) -> None:
    """Has each table with a key copied in parts of one block. A run reads `width`, at least."""
    patch.setattr(parts, "PART_BYTES", 1)
    patch.setattr(parts, "WHOLE_BYTES", -1)
    patch.setattr(parts, "WIDTH", width)
    patch.setattr(parts, "SHARE_SECONDS", seconds)


def run(replication: Replication) -> Sequence[Replicated | Apart]:
    replication.tick()
    return replication.run()


def until_copied(replication: Replication, most: int = 20) -> int:
    """Applies batches until no table is copied any more. Returns how many."""
    for count in range(1, most):
        if not any(isinstance(each, Apart) for each in run(replication)):
            replication.catch_up()
            return count
    raise AssertionError(f"it is never copied: {replication.copied[-12:]}")


def status(replication: Replication) -> ReplicaStatus:
    with Client(replication.url) as client:
        return next(each for each in client.replicas("changes") if each.table == "public.t")


def left_behind(lake: LakeReplication) -> list[Path]:
    """Records of copies."""
    return [path for path in lake.folder.rglob("_pgque/*") if path.is_file()]


def has_failed(replication: Replication) -> str:
    """Applies batches until the table fails. Returns why."""
    for _ in range(20):
        run(replication)
        if failure := status(replication).failure:
            return failure
    raise AssertionError("it does not fail")
