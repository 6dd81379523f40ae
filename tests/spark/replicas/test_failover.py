"""Replicas whose tables go on, on a standby that was promoted."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client.errors import InvalidArgument, TargetOutOfStep
from tests.support.replicas.faults import Faults
from tests.support.replicas.model import Model
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    IcebergReplication,
    PostgresReplication,
    Replication,
    adopt,
)
from tests.support.servers.databases import empty_database
from tests.support.servers.standbys import cut_off, replicas


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DeltaReplication, IcebergReplication, PostgresReplication])
def test_replicas_go_on_with_a_promoted_standby_once_somebody_decides(
    server: Any,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
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
        replication.sql("update accounts set note = 'after the failover' where id % 2 = 0")
        replication.tick()
        with pytest.raises((InvalidArgument, TargetOutOfStep), match="incarnation") as refused:
            replication.run()
        adopt(replication, str(refused.value))
        model.go_on(3)
