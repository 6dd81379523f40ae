"""What IO managers need to load an asset: the Spark session, and the requested batches.

A downstream asset requests batches of an input with the metadata of the input.
"""

from datetime import datetime
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from ..client import InvalidArgument
from ..client.window import window_id
from ..project.keys import BATCHES
from ..spark.cluster.session import open_session
from .new_batches import batch_of, new_batches

_OF_RUN, _NEW = "run", "new"


def wanted_batches(context: dg.InputContext) -> frozenset[int] | None:
    """Returns the ids of the batches that an input's metadata request; None for all.

    Raises:
        InvalidArgument: if the metadata have an unknown value; if the run did not store the batches
            that the input requests; or as for `new_batches`.
    """
    found = (context.definition_metadata or {}).get(BATCHES)
    batches = getattr(found, "value", found)
    if batches == _OF_RUN:
        return frozenset(_of_this_run(context))
    if batches == _NEW:
        return new_batches(context)
    if batches is not None:
        raise InvalidArgument(
            f"the input {context.asset_key.to_user_string()} requests the batches {batches!r}",
            f'Set {BATCHES} to "{_NEW}" for batches that the asset has not read, to "{_OF_RUN}" '
            "for batches that the same run stored, or leave it out for all.",
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
    """Returns the session of the resource, or of the step if there is no resource.

    Raises:
        InvalidArgument: if there is no session either.
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


def _of_this_run(context: dg.InputContext) -> list[int]:
    """Returns the batches of the asset that this run stored, or the run that it re-executes.

    Raises:
        InvalidArgument: if there is no such run. A run that another run requested would miss the
            batches in between.
    """
    instance, key = context.instance, context.asset_key
    run: dg.DagsterRun | None = context.step_context.dagster_run
    while run is not None:
        found = instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        made = [each for each in found.records if each.asset_key == key]
        if made:
            return [each for each in map(batch_of, made) if each is not None]
        run = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    raise InvalidArgument(
        f'this run did not store {key.to_user_string()}, and {BATCHES}: "{_OF_RUN}" requests the '
        "batches that the same run stored",
        f'Set {BATCHES} to "{_NEW}" for batches that the asset has not read, leave it out for all, '
        "or materialize both assets in one run.",
    )
