"""The replicas of each format. Its library is loaded when it is used."""

from typing import Any

from ...client.session import Session
from ...client.source_tables import SourceTable
from .lake import LakeReplica
from .target import IcebergReplicas, LakeReplicas


def owner_of(queue: str, consumer: str) -> str:
    """Returns how a table of the lake names the consumer of a queue whose replica it is."""
    return queue if consumer == queue else f"{queue}/{consumer}"


def replica_of(
    target: LakeReplicas, source: SourceTable, owner: str, session: Session
) -> LakeReplica[Any]:
    """Returns the replica of a table.

    Args:
        target: where replicas are.
        source: the table.
        owner: who replicates it, as `owner_of` says.
        session: of its database.

    Raises:
        InvalidArgument: if the table, or a column, has a name that a replica cannot have.
    """
    target.check(source)
    if isinstance(target, IcebergReplicas):
        from .iceberg import IcebergReplica

        return IcebergReplica(target, source, owner, session.url)
    from .delta import DeltaReplica

    return DeltaReplica(target, source, owner)
