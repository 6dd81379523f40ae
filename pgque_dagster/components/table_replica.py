"""`TableReplicaComponent`: tables of PostgreSQL as verified Delta tables, from one YAML file."""

import dagster as dg

from ..replicas import build_table_replicas
from .mirror import mirror
from .scaffolding import TableReplicaScaffolder


@dg.scaffold_with(TableReplicaScaffolder)
class TableReplicaComponent(mirror(build_table_replicas), dg.Component):
    """Replicas of tables in Delta: their assets, sensors, checks and lineage.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.TableReplicaComponent
            attributes:
              name: shop
              tables:
                - public.orders
                - public.customers
              base_dir: lake

        A subclass may change the assets:

        .. code-block:: python

            class OwnedReplicas(TableReplicaComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.replace_attributes(owners=["team:shop"])
    """

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of an asset. Override this to change it.

        Args:
            spec: the spec that `build_table_replicas` makes. Keep its key and metadata.
        """
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds what `build_table_replicas` builds."""
        return build_table_replicas(**self.arguments()).map_resolved_asset_specs(
            func=self.get_asset_spec
        )
