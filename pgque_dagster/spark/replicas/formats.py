"""The replica classes of the formats. A format's library is loaded when it is used."""

from typing import Any

from ...client.replicas.source import SourceTable
from ...client.session import Session
from .lake import LakeReplica
from .location import IcebergReplicas, LakeReplicas


def replica_of(
    target: LakeReplicas, source: SourceTable, queue: str, consumer: str, session: Session
) -> LakeReplica[Any]:
    """Returns the replica of a table.

    Raises:
        InvalidArgument: if the table, or a column, has a name that a replica cannot have.
    """
    target.check(source)
    owner = queue if consumer == queue else f"{queue}/{consumer}"
    if isinstance(target, IcebergReplicas):
        from .iceberg import IcebergReplica

        return IcebergReplica(target, source, owner, session.url)
    from .delta import DeltaReplica

    return DeltaReplica(target, source, owner)
