"""Names of tables: their keys in Dagster, and what names with `*` stand for."""

import re
from collections.abc import Sequence

import dagster as dg

from ..client import Client, InvalidArgument
from ..client.replicas.postgres import PostgresReplicas
from ..client.source_tables import expanded
from ..client.table_spec import TableSpec
from ..project.database import Database
from ..project.keys import identifier
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import failing_by_its_reason
from ..spark.replicas.target import LakeReplicas, check_path

Target = LakeReplicas | PostgresReplicas

_KEY_PART = re.compile(r"[A-Za-z0-9_-]+")
_REFRESH = "Run dg utils refresh-defs-state, or restart dg dev"


def check_tables(name: str, tables: Sequence[TableSpec], target: Target) -> None:
    """Refuses tables that cannot be the replicas `name`.

    Raises:
        DagsterInvalidDefinitionError: if there are none, or one is named twice or wrongly, or the
            target is none.
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
            check_name(target, table)
        except InvalidArgument as error:
            raise dg.DagsterInvalidDefinitionError(f"replicas {name}: {error}") from None
        if sources.count(table.source) > 1:
            raise dg.DagsterInvalidDefinitionError(
                f"replicas {name}: {table.source} is there twice"
            )


def check_name(target: Target, table: TableSpec) -> None:
    """Refuses a table whose name the target cannot have.

    Args:
        target: where the replicas are.
        table: the table.

    Raises:
        InvalidArgument: if it cannot, or the name stands for several tables.
    """
    if table.is_pattern:
        raise InvalidArgument(
            f"{table.source} names several tables",
            "Name each, or use TableReplicaComponent, which takes names with *.",
        )
    path = table.path
    if not isinstance(target, PostgresReplicas):
        check_path(table.source, path)


def replica_key(database: Database, name: str, table: TableSpec) -> dg.AssetKey:
    """Returns the key of a replica."""
    return dg.AssetKey([*database.prefix, name, *_parts(table)])


def source_key(database: Database, queue: str, table: TableSpec) -> dg.AssetKey:
    """Returns the key of a table that is replicated, which is told from its replica's by its end.

    Dagster's graph shows only the key's last part.
    """
    schema, relation = _parts(table)
    return dg.AssetKey([*database.prefix, queue, "source", schema, f"{relation}_source"])


def _parts(table: TableSpec) -> list[str]:
    """Returns schema and name as Dagster accepts them in a key."""
    return [part if _KEY_PART.fullmatch(part) else identifier(part) for part in table.path]


def wildcard_check(
    database: Database,
    name: str,
    queue: str,
    names: Sequence[str | TableSpec],
    tables: Sequence[TableSpec],
    target: Target,
) -> dg.AssetChecksDefinition:
    """Returns the check `wildcard_tables` of replicas, on their queue.

    Args:
        database: the tables' database.
        name: of the replicas. Those that share the queue of others have it in the check's name.
        queue: the queue of their changes.
        names: the names, some of them with `*`.
        tables: the tables that are replicated.
        target: where the replicas are.
    """
    shown = ", ".join(spec.source for spec in map(TableSpec.of, names) if spec.is_pattern)

    @dg.asset_check(
        asset=database.queue_key(queue),
        name="wildcard_tables" if name == queue else f"wildcard_tables_{identifier(name)}",
        description=f"The tables that are replicated are those that {shown} stands for now.",
    )
    @takes_resource(database)
    def wildcard_tables(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> dg.AssetCheckResult:
        (key,) = context.selected_asset_check_keys
        with failing_by_its_reason(context.log), pgque.client() as client:
            return wildcard_result(client, key, names, tables, target)

    return wildcard_tables


def wildcard_result(
    client: Client,
    key: dg.AssetCheckKey,
    names: Sequence[str | TableSpec],
    tables: Sequence[TableSpec],
    target: Target,
) -> dg.AssetCheckResult:
    """Evaluates the check `wildcard_tables`."""
    try:
        found = expanded(client, names, target.check)
    except InvalidArgument as error:
        return dg.AssetCheckResult(
            passed=False, asset_key=key.asset_key, check_name=key.name, description=str(error)
        )
    now, known = ({spec.source for spec in each} for each in (found.specs, tables))
    problems = [
        *(f"{table} is not replicated. {_REFRESH}." for table in sorted(now - known)),
        *(
            f"{table} has that name no longer. {_REFRESH}."
            for table in sorted(known - now - set(found.left_out))
        ),
        *(f"{table} cannot be replicated: {why}" for table, why in found.left_out.items()),
    ]
    shown = ", ".join(spec.source for spec in map(TableSpec.of, names) if spec.is_pattern)
    return dg.AssetCheckResult(
        passed=not problems,
        asset_key=key.asset_key,
        check_name=key.name,
        description=" ".join(problems) or f"{shown} stands for the tables that are replicated.",
    )
