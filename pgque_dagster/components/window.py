"""`WindowComponent`: an asset over time windows, computed from the events of a queue."""

from datetime import timedelta
from typing import Annotated, Any

import dagster as dg

from ..assets.decorators import pgque_asset
from .computed import Computed, OfDagster
from .options import Options, duration, mirror, option, template
from .scaffolding import WindowScaffolder

# Options that a window does not have.
OF_CONSUMERS = ["consumer", "start_at", "partitions", "lease_ttl", "batch_safe", "check_specs"]


class RetryOptions(Options):
    """Options of Dagster's `RetryPolicy`."""

    max_retries: Annotated[int, option("How often a failed step is repeated.")] = 1
    delay: Annotated[timedelta, duration("The wait before each repetition.")] = timedelta(0)


class WindowAssetOptions(mirror(pgque_asset, more=OfDagster, leave_out=OF_CONSUMERS)):
    """Options of `pgque_asset` for windows."""

    partitions_def: Annotated[
        dg.TimeWindowPartitionsDefinition,
        template("The windows.", "{{ dg.DailyPartitionsDefinition(start_date='2026-12-24') }}"),
    ]
    retry_policy: Annotated[
        RetryOptions | None, option("How a failed step is repeated; by default it is not.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as arguments of `pgque_asset`."""
        again = self.retry_policy
        policy = again and dg.RetryPolicy(again.max_retries, again.delay.total_seconds())
        return {**super().arguments(), "retry_policy": policy}


@dg.scaffold_with(WindowScaffolder)
class WindowComponent(WindowAssetOptions, Computed, dg.Component):
    """An asset over time windows of the events that a queue retains.

    Each partition is a window. The transform gets its events as in a BatchConsumerComponent. No
    consumer is registered, so windows can be computed in any order, and again.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.WindowComponent
            attributes:
              queue: orders
              partitions_def: "{{ dg.DailyPartitionsDefinition(start_date='2026-12-24') }}"
              transform: .transform.revenue
              payload:
                schema: product string not null, total double not null
              sink:
                base_dir: output
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset and its IO manager."""
        asset, resources = self.asset_and_resources()
        return dg.Definitions(assets=[asset], resources=resources)
