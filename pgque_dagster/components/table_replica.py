"""`TableReplicaComponent`: verified replicas of PostgreSQL tables, from one YAML file."""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from pydantic import Field, model_validator

from ..client import Client, InvalidArgument
from ..client.replicas.source import expanded
from ..project.consumers import AssetConsumer
from ..project.database import Database
from ..replicas import (
    DeltaReplicas,
    IcebergReplicas,
    PostgresReplicas,
    TableSpec,
    build_table_replicas,
)
from ..replicas.names import replica_key, source_key
from .consuming import Consuming, all_components
from .options import built, given_as, mirror, one_of, option
from .queue import QueueComponent
from .scaffolding import TableReplicaScaffolder

_logger = logging.getLogger(__name__)


class DeltaReplicaOptions(mirror(DeltaReplicas)):
    """Options of `DeltaReplicas`."""

    type: Annotated[Literal["delta"], option("Delta tables, at <base_dir>/<schema>/<table>.")] = (
        "delta"
    )


class IcebergReplicaOptions(mirror(IcebergReplicas)):
    """Options of `IcebergReplicas`."""

    type: Annotated[Literal["iceberg"], option("Iceberg tables, named like the tables.")]


class PostgresReplicaOptions(mirror(PostgresReplicas, leave_out=["schema"])):
    """Options of `PostgresReplicas`."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str | None,
        option("The schema of all replicas, created if missing; null for each table's own schema."),
    ] = Field(default=None, alias="schema")

    type: Annotated[
        Literal["postgres"], option("Tables of another database or schema of PostgreSQL.")
    ]

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        """Refuses the tables' own database and schemas, as each table would be its own replica."""
        if not self.url and not self.schema_:
            raise ValueError("name the schema of the replicas, or the url of another database")
        return self


class TableOptions(mirror(TableSpec)):
    """The spec of a table: what is replicated of it."""


def _spec(context: dg.ResolutionContext, table: Any) -> str | TableSpec:
    if isinstance(table, str):
        return str(context.resolve_value(table))
    spec: TableSpec
    (spec,) = built(TableOptions.resolve_from_model(context, table))
    return spec


@dg.scaffold_with(TableReplicaScaffolder)
class TableReplicaComponent(
    mirror(build_table_replicas, leave_out=["tables", "target", "names", "queue_assets"]),
    dg.StateBackedComponent,
    Consuming,
):
    """Replicas of tables: their assets, sensors, checks and lineage.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.TableReplicaComponent
            attributes:
              name: shop
              tables:
                - public.orders
                - source: public.customers
                  exclude: [notes]
                  mask: {email: sha256}
              target:
                type: delta
                base_dir: lake

        A subclass may change the assets:

        .. code-block:: python

            class OwnedReplicas(TableReplicaComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.replace_attributes(owners=["team:shop"])
    """

    tables: Annotated[
        list[str | TableSpec],
        given_as(
            list[str | TableOptions.model()],
            "The tables, such as public.orders, or billing.* for all of a schema; each needs "
            "a primary key. An object with source, exclude and mask leaves out columns, or masks "
            "them; unstorable: {column: text} makes the lake store any value as text.",
            resolve=lambda context, value: [_spec(context, each) for each in value],
        ),
    ]

    target: Annotated[
        DeltaReplicaOptions | IcebergReplicaOptions | PostgresReplicaOptions,
        one_of(
            "Where the replicas are.",
            DeltaReplicaOptions,
            IcebergReplicaOptions,
            PostgresReplicaOptions,
        ),
    ]

    url: Annotated[
        str | None,
        option(
            "The database of the tables, only for names with *: dg utils refresh-defs-state "
            "queries it, and so do dg dev and dagster dev each time they load the project.",
            "{{ env.PGQUE_URL }}",
        ),
    ] = None

    defs_state: ResolvedDefsStateConfig = DefsStateConfigArgs.local_filesystem()

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of an asset. Override this to change it.

        Args:
            spec: the spec that `build_table_replicas` makes. Keep its key and metadata.
        """
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds what `build_table_replicas` builds."""
        for other in all_components(context, TableReplicaComponent):
            # A component with the same consumer is refused elsewhere, or is this one.
            if self.asset_consumers[0] != other.asset_consumers[0]:
                _refuse_shared_places(self, other)
        if self._has_patterns:
            return super().build_defs(context)
        return self._build(context, self.tables)

    @property
    def queue_name(self) -> str:
        """The queue of the changes."""
        named: str = self.queue or self.arguments()["name"]
        return named

    @property
    def asset_consumers(self) -> list[AssetConsumer]:
        """The consumer, with the replicas of the tables whose names have no `*`."""
        of = Database(self.database)
        name = self.arguments()["name"]
        keys = tuple(replica_key(of, name, each) for each in self._named_tables)
        return [AssetConsumer(self.queue_name, name, keys, database=of)]

    @property
    def sources(self) -> list[dg.AssetKey]:
        """The tables whose names have no `*`."""
        of = Database(self.database)
        return [source_key(of, self.queue_name, each) for each in self._named_tables]

    @property
    def _named_tables(self) -> list[TableSpec]:
        return [each for each in map(TableSpec.of, self.tables) if not each.is_pattern]

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """The place where the tables that match names with `*` are kept."""
        return DefsStateConfig.from_args(
            self.defs_state,
            default_key=f"TableReplicaComponent[{self.arguments()['name']}]",
        )

    def write_state_to_path(self, state_path: Path) -> None:
        """Reads from the database which tables exist.

        Args:
            state_path: the file for their names.

        Raises:
            PgqueError: if a name matches no table, or the database cannot be read.
        """
        specs = [TableSpec.of(each) for each in self.tables]
        if self._has_patterns:
            if self.url is None:
                raise InvalidArgument(
                    "names with * need a database in which to look for the tables",
                    "Write url: '{{ env.PGQUE_URL }}', and set PGQUE_URL before you start Dagster.",
                )
            (target,) = built(self.target)
            with Client(self.url) as client:
                found = expanded(client, specs, target.check)
            specs = found.specs
            for table, why in found.left_out.items():
                _logger.error("%s is left out: %s", table, why)
        state_path.write_text(json.dumps([asdict(spec) for spec in specs]))

    def build_defs_from_state(
        self, context: dg.ComponentLoadContext, state_path: Path | None
    ) -> dg.Definitions:
        """Builds the replicas of the tables that existed when the database was read.

        Args:
            context: the context of the component.
            state_path: the file with their names.
        """
        if state_path is None:
            raise InvalidArgument(
                "the tables that match names with * have not been read from the database",
                "Run dg utils refresh-defs-state, as for other components that keep a state.",
            )
        tables = [TableSpec(**each) for each in json.loads(state_path.read_text())]
        return self._build(context, tables)

    @property
    def _has_patterns(self) -> bool:
        return any(TableSpec.of(each).is_pattern for each in self.tables)

    def _build(
        self, context: dg.ComponentLoadContext, tables: Sequence[str | TableSpec]
    ) -> dg.Definitions:
        (target,) = built(self.target)
        names = self.tables if self._has_patterns else ()
        declared = [(each.database, each.queue) for each in all_components(context, QueueComponent)]
        options = {
            **self.arguments(),
            "tables": tables,
            "target": target,
            "names": names,
            "queue_assets": (self.database, self.queue_name) not in declared,
        }
        return build_table_replicas(**options).map_resolved_asset_specs(func=self.get_asset_spec)


def _refuse_shared_places(one: TableReplicaComponent, other: TableReplicaComponent) -> None:
    """Refuses two components that would write the same replica, and names them and the table."""
    of_other = _places(other)
    for spec, *place, name in _places(one):
        for its, *its_place, its_name in of_other:
            is_one = name == its_name or _stands_for(spec, its_name) or _stands_for(its, name)
            if place == its_place and is_one:
                names = " and ".join(each.asset_consumers[0].name for each in (one, other))
                # The target may have a password in it.
                raise dg.DagsterInvalidDefinitionError(
                    f"replicas {names} would write the same table of one target, of {spec.source}: "
                    "give one of them another target, or leave the table out of one"
                )


def _places(component: TableReplicaComponent) -> list[tuple[Any, ...]]:
    """Returns each table with the place of its replica, equal only for the same place."""
    (target,) = built(component.target)
    if isinstance(target, DeltaReplicas):
        folder = target.base_dir.rstrip("/")
        base: tuple[str, ...] = (folder if "://" in folder else str(Path(folder).resolve()),)
    elif isinstance(target, PostgresReplicas):
        base = (target.url or component.database,)
    elif target.catalog is not None:
        base = (str(sorted(target.catalog.items())),)
    else:
        base = (component.database, target.catalog_schema)
    into = getattr(target, "schema", None)
    return [
        (spec, type(target), *base, into or spec.path[0], spec.path[1])
        for spec in map(TableSpec.of, component.tables)
    ]


def _stands_for(spec: TableSpec, name: str) -> bool:
    """Returns whether a table's name has the `*` that stands for other names."""
    pattern = ".*".join(map(re.escape, spec.path[1].split("*")))
    return spec.is_pattern and bool(re.fullmatch(pattern, name))
