"""Whatever happens to writers, tables, sessions and attempts, replicas have their tables' rows.

`PGQUE_MODEL_SEEDS=70` sets how many seeds the slow test takes for each format.
"""

import os
from collections import Counter

import pytest

from pgque_dagster.client.replicas.deletes import MARKS
from tests.support.replicas.faults import Faults
from tests.support.replicas.model import Model
from tests.support.replicas.parts import copy_in_parts
from tests.support.replicas.replication import Replication

SEEDS = range(100, 100 + int(os.environ.get("PGQUE_MODEL_SEEDS") or 5))


def happened(
    replication: Replication, patch: pytest.MonkeyPatch, seed: int, steps: int
) -> Counter[str]:
    copy_in_parts(patch, seconds=1.0)
    # Deletes of each kind in turn.
    replication.keep(list(MARKS)[seed % len(MARKS)])
    model = Model(replication, Faults(replication, patch), seed)
    model.run(steps)
    return model.happened


def test_replicas_have_the_rows_of_their_tables_whatever_happens(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert happened(replication, monkeypatch, seed=3, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_have_the_rows_of_their_tables_for_many_seeds(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    assert happened(replication, monkeypatch, seed, steps=6)
