"""An attempt whose process is killed, or that loses its batch: each change counts once."""

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, LeaseLost
from tests.client.consumer.support import expire_leases
from tests.support.replicas.faults import Faults
from tests.support.replicas.killed import killed_at
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    Replication,
)


def prepare(replication: Replication) -> None:
    """Copies a table, and has a batch of its changes ready."""
    replication.sql("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("update t set v = 2; insert into t values (2, 2)")
    replication.tick()


def end_leases(replication: Replication) -> None:
    with psycopg.connect(replication.url, autocommit=True) as db:
        expire_leases(db)


@pytest.mark.parametrize(
    ("replication", "point"),
    [("delta", "after commit"), ("postgres", "after record")],
    indirect=["replication"],
)
def test_a_process_that_is_killed_loses_and_repeats_nothing(
    replication: Replication, tmp_path: Path, point: str
) -> None:
    prepare(replication)
    with killed_at(replication, point, tmp_path / "log"):
        end_leases(replication)
        replication.run()

    replication.check()
    assert replication.verify().is_equal


@pytest.mark.in_the_lake
@pytest.mark.parametrize(
    ("replication", "point"),
    [("delta", "after begin"), ("iceberg", "after begin"), ("postgres", "after record")],
    indirect=["replication"],
)
def test_an_attempt_that_lost_its_batch_publishes_nothing(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    prepare(replication)
    before = replication.replica("public.t")

    def lose() -> None:
        end_leases(replication)
        with Client(replication.url) as client:
            assert client.claim(QUEUE, CONSUMER, owner="another")

    Faults(replication, monkeypatch).set(point, 0, lose)
    with pytest.raises(LeaseLost):
        replication.run()

    assert replication.replica("public.t") == before


def test_a_new_target_is_said_to_have_no_copy(
    delta: DeltaReplication, spark: SparkSession, tmp_path: Path
) -> None:
    prepare(delta)
    other = DeltaReplication(delta.url, spark, tmp_path / "other")
    other.tables = delta.tables

    (done,) = other.run()

    assert done.reason == "the target has no copy of it"
