"""`TableReplicaComponent`: verified replicas of tables of PostgreSQL, from one YAML file."""

from typing import Annotated, Literal, Self

import dagster as dg
from pydantic import Field, model_validator

from ..replicas import (
    DeltaReplicas,
    IcebergReplicas,
    PostgresReplicas,
    build_table_replicas,
)
from .options import built, mirror, one_of, option
from .scaffolding import TableReplicaScaffolder


class DeltaReplicaOptions(mirror(DeltaReplicas)):
    """Options of `DeltaReplicas`."""

    type: Annotated[Literal["delta"], option("Delta tables, at <base_dir>/<schema>/<table>.")] = (
        "delta"
    )


class IcebergReplicaOptions(mirror(IcebergReplicas)):
    """Options of `IcebergReplicas`."""

    type: Annotated[Literal["iceberg"], option("Iceberg tables, named as the tables are.")]


class PostgresReplicaOptions(mirror(PostgresReplicas, leave_out=["schema"])):
    """Options of `PostgresReplicas`."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str | None,
        option("The schema of all replicas; null for that of each table. It is created."),
    ] = Field(default=None, alias="schema")

    type: Annotated[
        Literal["postgres"], option("Tables of another database or schema of PostgreSQL.")
    ]

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        """Refuses the tables' own database and schemas: each table would be its own replica."""
        if not self.url and not self.schema_:
            raise ValueError("name the schema of the replicas, or the url of another database")
        return self


@dg.scaffold_with(TableReplicaScaffolder)
class TableReplicaComponent(mirror(build_table_replicas, leave_out=["target"]), dg.Component):
    """Replicas of tables: their assets, sensors, checks and lineage.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.TableReplicaComponent
            attributes:
              name: shop
              tables:
                - public.orders
                - public.customers
              target:
                type: delta
                base_dir: lake

        A subclass may change the assets:

        .. code-block:: python

            class OwnedReplicas(TableReplicaComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.replace_attributes(owners=["team:shop"])
    """

    target: Annotated[
        DeltaReplicaOptions | IcebergReplicaOptions | PostgresReplicaOptions,
        one_of(
            "Where the replicas are.",
            DeltaReplicaOptions,
            IcebergReplicaOptions,
            PostgresReplicaOptions,
        ),
    ]

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of an asset. Override this to change it.

        Args:
            spec: the spec that `build_table_replicas` makes. Keep its key and metadata.
        """
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds what `build_table_replicas` builds."""
        (target,) = built(self.target)
        options = {**self.arguments(), "target": target}
        return build_table_replicas(**options).map_resolved_asset_specs(func=self.get_asset_spec)
