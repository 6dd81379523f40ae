"""Whatever happens to writers, tables, sessions and attempts, replicas have their tables' rows.

`PGQUE_MODEL_SEEDS=70` sets how many seeds the slow test takes for each format.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client.errors import InvalidArgument, TargetOutOfStep
from pgque_dagster.client.replicas.deletes import HARD, HISTORY, Deletes
from tests.support.replicas.faults import Faults
from tests.support.replicas.model import Model
from tests.support.replicas.parts import copy_in_parts
from tests.support.replicas.relayed import relayed
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    IcebergReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
    adopt,
)
from tests.support.servers.databases import empty_database
from tests.support.servers.standbys import cut_off, replicas

SEEDS = range(100, 100 + int(os.environ.get("PGQUE_MODEL_SEEDS") or 5))


def happened(
    replication: Replication,
    patch: pytest.MonkeyPatch,
    seed: int,
    steps: int,
    kinds: Sequence[Deletes] = get_args(Deletes),
) -> Counter[str]:
    if steps > 1:
        copy_in_parts(patch, seconds=1.0)
    # Deletes of each kind in turn.
    replication.keep(kinds[seed % len(kinds)])
    model = Model(replication, Faults(replication, patch), seed)
    model.run(steps)
    return model.happened


@pytest.mark.in_the_lake
def test_replicas_have_the_rows_of_their_tables_whatever_happens(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step costs ten times as much in the lake.
    steps = 1 if isinstance(replication, LakeReplication) else 2
    assert happened(replication, monkeypatch, 3, steps)


def test_replicas_from_the_wal_have_the_rows_of_their_tables_whatever_happens(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relayed(replication, monkeypatch, seed=3):
        assert happened(replication, monkeypatch, 3, 1, kinds=(HARD, HISTORY))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_from_the_wal_have_the_rows_of_their_tables_for_many_seeds(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with relayed(replication, monkeypatch, seed):
        assert happened(replication, monkeypatch, seed, 6, kinds=(HARD, HISTORY))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_have_the_rows_of_their_tables_for_many_seeds(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    assert happened(replication, monkeypatch, seed, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DeltaReplication, IcebergReplication, PostgresReplication])
def test_replicas_go_on_with_a_promoted_standby_once_somebody_decides(
    server: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    with replicas() as servers, empty_database(server) as target:
        primary = servers.primary()
        standby = servers.standby(primary)
        place = target if kind is PostgresReplication else tmp_path / "lake"
        replication: Replication = kind(primary.url, spark, place)
        replication.sql(f"select pgque.create_queue('{QUEUE}')")
        replication.sql(f"select pgque.register_consumer('{QUEUE}', '{CONSUMER}')")
        model = Model(replication, Faults(replication, monkeypatch), seed=1)
        model.run(3)
        cut_off(standby, primary)
        # Rows that only the replicas have afterwards.
        model.go_on(3)
        primary.stop()
        standby.promote()
        replication.url = standby.url
        with pytest.raises((InvalidArgument, TargetOutOfStep), match="incarnation") as refused:
            replication.follow("update accounts set note = 'after the failover' where id % 2 = 0")
        adopt(replication, str(refused.value))
        model.go_on(3)
