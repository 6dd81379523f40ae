"""Names of tables: which ones a target accepts, and their keys in Dagster."""

import re
from collections.abc import Sequence

import dagster as dg

from ..client import InvalidArgument
from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.spec import TableSpec
from ..project.database import Database
from ..project.keys import identifier
from ..spark.replicas.location import LakeReplicas, check_path

Target = LakeReplicas | PostgresReplicas

_KEY_PART = re.compile(r"[A-Za-z0-9_-]+")


def check_tables(name: str, tables: Sequence[TableSpec], target: Target) -> None:
    """Refuses tables that cannot be the replicas `name`.

    Raises:
        DagsterInvalidDefinitionError: if there are no tables, or one is named twice or wrongly, or
            the target is invalid.
    """
    if not isinstance(target, Target):
        raise dg.DagsterInvalidDefinitionError(
            f"replicas {name}: the target {target!r} must be DeltaReplicas(...),"
            " IcebergReplicas(...) or PostgresReplicas(...)"
        )
    if not tables:
        raise dg.DagsterInvalidDefinitionError(f"replicas {name}: no list of tables is given")
    sources = [table.source for table in tables]
    for table in tables:
        try:
            if table.is_pattern:
                raise InvalidArgument(
                    f"{table.source} names several tables",
                    "Name each, or use TableReplicaComponent, which takes names with *.",
                )
            path = table.path
            if not isinstance(target, PostgresReplicas):
                check_path(table.source, path)
        except InvalidArgument as error:
            raise dg.DagsterInvalidDefinitionError(f"replicas {name}: {error}") from None
        if sources.count(table.source) > 1:
            raise dg.DagsterInvalidDefinitionError(
                f"replicas {name}: {table.source} is named twice"
            )


def replica_key(database: Database, name: str, table: TableSpec) -> dg.AssetKey:
    """Returns the key of a replica."""
    return dg.AssetKey([*database.prefix, name, *_parts(table)])


def source_key(database: Database, queue: str, table: TableSpec) -> dg.AssetKey:
    """Returns the key of a source table; its last part differs from the replica's.

    Dagster's graph shows only the key's last part.
    """
    schema, relation = _parts(table)
    return dg.AssetKey([*database.prefix, queue, "source", schema, f"{relation}_source"])


def _parts(table: TableSpec) -> list[str]:
    """Returns schema and name as Dagster accepts them in a key."""
    return [part if _KEY_PART.fullmatch(part) else identifier(part) for part in table.path]
