"""Where replicas are: in Delta tables, or in tables of PostgreSQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..client import Client
from ..client.replicas.postgres import PostgresReplicas
from ..client.replicas.standing import Replicated
from ..client.replicas.verification import Verification
from ..client.source_tables import SourceTable
from ..spark.address import DatabaseAddress
from ..spark.cluster.session import open_session

if TYPE_CHECKING:
    from ..spark import SparkBatch
    from ..spark.sinks.tables import TableSink


@dataclass(frozen=True)
class DeltaReplicas:
    """Where the replicas of tables are in Delta.

    Attributes:
        base_dir: a directory that driver and executors share, or a URL such as `s3://bucket/lake`.
            The replica of `public.orders` is in `public/orders`.
        storage_options: credentials and the like for a URL, as Delta's library names them.
    """

    base_dir: str
    storage_options: Mapping[str, str] | None = None


Target = DeltaReplicas | PostgresReplicas


def kind_of(target: Target) -> str:
    """Returns the kind of asset that Dagster shows."""
    return "deltalake" if isinstance(target, DeltaReplicas) else "postgres"


def replicate(
    target: Target, batch: "SparkBatch", tables: Sequence[str], log: Callable[[str], object]
) -> Iterable[Replicated]:
    """Applies a batch to the replicas of tables."""
    # Late, because the one loads Spark.
    if isinstance(target, DeltaReplicas):
        from ..spark.replicas import replica

        options = dict(target.storage_options or {})
        return replica.replicate(batch, tables, target.base_dir, options, log)
    from ..client.replicas import postgres

    return postgres.replicate(batch.claim, tables, target, log)


def sinks(target: DeltaReplicas, client: Client, tables: Sequence[str]) -> "list[TableSink]":
    """Returns the tables that the replicas are, as far as there are some yet."""
    from ..spark.replicas.delta import DeltaReplica

    options = dict(target.storage_options or {})
    sources = [SourceTable.find(client, table) for table in tables]
    replicas = [DeltaReplica(target.base_dir, source, options) for source in sources]
    return [replica.sink for replica in replicas if replica.state() is not None]


def verify(
    target: Target,
    client: Client,
    queue: str,
    table: str,
    pyspark: Any,
    address: DatabaseAddress,
) -> Verification:
    """Compares the replica of a table with it; the consumer has the name of the queue."""
    if isinstance(target, DeltaReplicas):
        from ..spark.replicas import verify as delta

        return delta.verify(
            open_session(pyspark),
            client,
            client.url,
            queue,
            queue,
            table,
            target.base_dir,
            address=address,
            storage_options=dict(target.storage_options or {}),
        )
    from ..client.replicas import postgres_verify

    return postgres_verify.verify(client, queue, queue, table, target)
