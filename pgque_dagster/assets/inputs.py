"""What the IO managers need to load an asset: the Spark session, and which batches are wanted.

A downstream asset says which batches of an input it wants by the metadata of the input.
"""

from datetime import datetime
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from ..client import InvalidArgument
from ..client.window import window_id
from ..project.keys import BATCH_ID, BATCHES
from ..spark.cluster.session import open_session

_OF_RUN = "run"
# Among so many materializations of an asset, the newest ones, a run is looked for.
_NEWEST = 100


def wanted_batches(context: dg.InputContext) -> frozenset[int] | None:
    """Returns the ids of the batches that an input wants, by its metadata; None for all.

    Raises:
        InvalidArgument: if the metadata have a value that is not one of those that they can have.
    """
    found = (context.definition_metadata or {}).get(BATCHES)
    batches = getattr(found, "value", found)
    if batches == _OF_RUN:
        return frozenset(_of_upstream_run(context))
    if batches is not None:
        raise InvalidArgument(
            f"the input {context.asset_key.to_user_string()} wants the batches {batches!r}",
            f'Set {BATCHES} to "{_OF_RUN}" for those that the upstream run stored, or leave it out '
            "for all.",
        )
    if not context.has_asset_partitions:
        return None
    partitions, keys = context.asset_partitions_def, context.asset_partition_keys
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return None
    if len(keys) == partitions.get_num_partitions():
        return None
    return frozenset(window_id(window_of(partitions, key)[0]) for key in keys)


def window_of(partitions: dg.TimeWindowPartitionsDefinition, key: str) -> tuple[datetime, datetime]:
    """Returns the beginning and the end of a partition."""
    window = partitions.time_window_for_partition_key(key)
    return window.start, window.end


def session_of(pyspark: Any, context: dg.InputContext) -> SparkSession:
    """Returns the session of the resource; without one, that of the step.

    Raises:
        InvalidArgument: if there is neither.
    """
    if pyspark is not None:
        return open_session(pyspark)
    session = SparkSession.getActiveSession()
    if session is None:
        raise InvalidArgument(
            f"there is no Spark session to read {context.asset_key.to_user_string()}",
            "Pass the resource that the assets use to the IO manager: pyspark=….",
        )
    return session


def _of_upstream_run(context: dg.InputContext) -> list[int]:
    """Returns the batches that this run stored of the asset, or else those of its last run."""
    records = context.instance.fetch_materializations(context.asset_key, limit=_NEWEST).records
    runs = [record.run_id for record in records]
    this_run = _this_run(context)
    run_id = this_run if this_run in runs else next(iter(runs), None)
    made = [each.asset_materialization for each in records if each.run_id == run_id]
    found = [each.metadata[BATCH_ID].value for each in made if each and BATCH_ID in each.metadata]
    return [int(str(batch_id)) for batch_id in found]


def _this_run(context: dg.InputContext) -> str | None:
    """Returns the run's id, as far as Dagster tells it: before 1.13 only if it stored the asset."""
    try:
        return context.upstream_output.run_id if context.upstream_output else None
    except dg.DagsterInvariantViolationError:
        return None
