"""The options that assets of batches and assets of windows share in YAML."""

from datetime import timedelta
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from .options import Options, condition, duration, number, option


class SharedAssetOptions(Options):
    """Options of both `pgque_asset` and `pgque_window_asset`."""

    queue: Annotated[str, option("The queue's name.", "orders")]
    slices: Annotated[
        int, number("The maximum number of partitions in which a large batch is read.")
    ] = 4
    timeout: Annotated[
        timedelta | None,
        duration("How long the work on one batch may take before the run fails.", positive=True),
    ] = None
    name: Annotated[str | None, option("The asset's name; by default the transform's.")] = None
    key_prefix: Annotated[list[str] | None, option("Prefix of the asset's key.", ["bank"])] = None
    deps: Annotated[
        list[dg.ResolvedAssetKey], option("Upstream assets besides the queue.", ["rates"])
    ] = Field(default=[])
    description: Annotated[
        str | None, option("Of the asset; by default the transform's docstring.")
    ] = None
    kinds: Annotated[list[str] | None, option("Shown with the asset; by default pyspark.")] = None
    group_name: Annotated[str | None, option("The asset's group.", "sales")] = None
    owners: Annotated[list[str] | None, option("Of the asset.", ["team:sales"])] = None
    tags: Annotated[dict[str, str] | None, option("Of the asset.", {"tier": "gold"})] = None
    metadata: Annotated[dict[str, Any] | None, option("Of the asset.")] = None
    code_version: Annotated[str | None, option("Of the transform.", "3")] = None
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetKey] | None,
        condition("When Dagster materializes the asset automatically, besides its sensor."),
    ] = None
    freshness_policy: Annotated[
        dg.FreshnessPolicy | None,
        dg.Resolver.default(
            model_field_type=str | None, description="Of the asset, as a template."
        ),
    ] = None
    io_manager_key: Annotated[
        str | None, option("The key of the IO manager, if it is a resource that you define.")
    ] = None
    op_tags: Annotated[dict[str, Any] | None, option("Of the step that computes it.")] = None
    pool: Annotated[
        str | None, option("A pool that limits how many steps run at the same time.")
    ] = None
