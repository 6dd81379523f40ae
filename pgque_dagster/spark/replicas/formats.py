"""The replicas of each format. Its library is loaded when it is used."""

from typing import Any

from ...client.session import Session
from ...client.source_tables import SourceTable
from .lake import LakeReplica
from .target import IcebergReplicas, LakeReplicas


def replica_of(
    target: LakeReplicas, source: SourceTable, queue: str, session: Session
) -> LakeReplica[Any]:
    """Returns the replica of a table.

    Args:
        target: where replicas are.
        source: the table.
        queue: the queue of its changes.
        session: of its database.

    Raises:
        InvalidArgument: if the table, or a column, has a name that a replica cannot have.
    """
    target.check(source)
    if isinstance(target, IcebergReplicas):
        from .iceberg import IcebergReplica

        return IcebergReplica(target, source, queue, session.url)
    from .delta import DeltaReplica

    return DeltaReplica(target, source, queue)
