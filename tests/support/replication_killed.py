"""Applies a batch in a process of its own, which kills itself."""

from contextlib import AbstractContextManager
from pathlib import Path

from pgque_dagster.client.table_spec import TableSpec
from tests.support.replication import DeltaReplication, PostgresReplication, Replication
from tests.support.signals import signalled


def killed_at(replication: Replication, point: str, log: Path) -> AbstractContextManager[object]:
    """Has another process apply the next batch, and kill itself at a point, by SIGKILL."""
    if isinstance(replication, DeltaReplication):
        kind, place = "delta", str(replication.folder)
    else:
        assert isinstance(replication, PostgresReplication)
        kind, place = "postgres", str(replication.target.url)
    tables = ",".join(TableSpec.of(each).source for each in replication.tables)
    return signalled("replicating_driver", kind, replication.url, place, point, tables, log=log)
