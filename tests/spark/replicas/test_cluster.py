"""Replicas on a cluster and in a bucket: each batch counts once, whoever dies meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.deletes import HISTORY
from pgque_dagster.client.replicas.spec import TableSpec
from tests.programs.cluster_replicas import LOG, TABLES, T
from tests.support.queues.events import tick
from tests.support.queues.sql import connect, value
from tests.support.replicas.replication import QUEUE
from tests.support.servers.s3 import s3_server
from tests.support.spark.clusters import (
    PATIENCE_SECONDS,
    ROOT,
    SPECULATION,
    driver,
    run_driver,
    standalone,
)

FILES = 64
TASKS = ["killed writing", "killed searching", "hanging writing", "hanging searching"]
CONF = {
    **SPECULATION,
    # Executors know what happens.
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    # Only a task that is not alone runs twice.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("deletes", ["hard", "history"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_each_batch_counts_once_whoever_dies(
    master: str, queue_url: str, tmp_path: Path, kind: str, deletes: str
) -> None:
    tables = [T] if deletes == HISTORY else [T, TableSpec(LOG, mode="append")]
    with connect(queue_url) as db, Client(queue_url) as client, s3_server() as s3:
        db.execute(TABLES.encode())
        capture_new(client, QUEUE, tables)
        tick(client, QUEUE)

        def story(*steps: str) -> tuple[str, str, str, Path]:
            folder = tmp_path / steps[-1]
            folder.mkdir()
            lake = {"kind": kind, "deletes": deletes, "endpoint": s3.endpoint, "steps": steps}
            return master, json.dumps(lake), queue_url, folder

        def killed(*steps: str) -> None:
            with driver(*story(*steps), **options) as process:
                assert process.wait(PATIENCE_SECONDS) == -SIGKILL

        options: Any = {"conf": CONF, "module": "cluster_replicas"}
        report = run_driver(*story("copy", *TASKS), **options)
        assert report["files"] >= FILES
        killed("before commit")
        killed("again", "after commit")
        report = run_driver(*story("again"), **options)
        assert report["copied"] == 0
        assert value(db, "select max(n) from log") == len(TASKS) + 2
    happened = {path.name for path in tmp_path.glob("*/happened-*")}
    assert happened == {f"happened-{each}" for each in (*TASKS, "before commit", "after commit")}
