"""Whatever happens to writers, tables, sessions and attempts, replicas have their tables' rows.

`PGQUE_MODEL_SEEDS=70` sets how many seeds the slow test takes for each format.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest

from pgque_dagster.client.replicas.deletes import HARD, HISTORY, Deletes
from tests.support.replicas.faults import Faults
from tests.support.replicas.model import Model
from tests.support.replicas.parts import copy_in_parts
from tests.support.replicas.relayed import relayed
from tests.support.replicas.replication import Replication

SEEDS = range(100, 100 + int(os.environ.get("PGQUE_MODEL_SEEDS") or 5))


def happened(
    replication: Replication,
    patch: pytest.MonkeyPatch,
    seed: int,
    steps: int,
    kinds: Sequence[Deletes] = get_args(Deletes),
) -> Counter[str]:
    copy_in_parts(patch, seconds=1.0)
    # Deletes of each kind in turn.
    replication.keep(kinds[seed % len(kinds)])
    model = Model(replication, Faults(replication, patch), seed)
    model.run(steps)
    return model.happened


def test_replicas_have_the_rows_of_their_tables_whatever_happens(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert happened(replication, monkeypatch, seed=3, steps=2)


@pytest.mark.in_the_lake
def test_replicas_from_the_wal_have_the_rows_of_their_tables_whatever_happens(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relayed(replication, monkeypatch, seed=3):
        assert happened(replication, monkeypatch, 3, 2, kinds=(HARD, HISTORY))


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
