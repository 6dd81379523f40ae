"""Applies a batch in a process of its own, which kills itself."""

from contextlib import AbstractContextManager
from pathlib import Path

from pgque_dagster.client.replicas.spec import TableSpec
from tests.programs.signals import signalled
from tests.support.replicas.replication import DeltaReplication, PostgresReplication, Replication


def killed_at(replication: Replication, point: str, log: Path) -> AbstractContextManager[object]:
    """Has another process apply the next batch, and kill itself at a point, by SIGKILL."""
    if isinstance(replication, DeltaReplication):
        kind, place = "delta", str(replication.folder)
    else:
        assert isinstance(replication, PostgresReplication)
        kind, place = "postgres", str(replication.target.url)
    tables = ",".join(TableSpec.of(each).source for each in replication.tables)
    return signalled("replicating", kind, replication.url, place, point, tables, log=log)
