"""What the IO managers need to load an asset: the Spark session, and which batches are wanted.

A downstream asset says which batches of an input it wants by the metadata of the input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from ..client import InvalidArgument
from ..client.window import window_id
from ..project.keys import BATCH_ID, BATCHES, SINCE
from ..spark.cluster.session import open_session
from .window_step import window_of

_OF_RUN = "run"
_PAGE = 100


@dataclass(frozen=True)
class Wanted:
    """The batches that an input wants.

    Args:
        since: only batches with this id or a higher one.
        batches: only batches with these ids.
    """

    since: int | None = None
    batches: frozenset[int] | None = None

    @classmethod
    def by(cls, context: dg.InputContext) -> "Wanted":
        """Reads the metadata of an input.

        Raises:
            InvalidArgument: if a value is not one of those that it can have.
        """
        metadata = context.definition_metadata or {}
        since, batches = _plain(metadata.get(SINCE)), _plain(metadata.get(BATCHES))
        if batches not in (None, _OF_RUN) or not isinstance(since, int | None):
            raise InvalidArgument(
                f"the input {context.asset_key.to_user_string()} wants the batches "
                f"{since if batches in (None, _OF_RUN) else batches!r}",
                f'Set {SINCE} to the id of a batch, or {BATCHES} to "{_OF_RUN}" for those that the '
                "upstream run stored. Without both, all batches are read.",
            )
        if batches:
            return cls(since, frozenset(_of_upstream_run(context)))
        return cls(since, _of_partitions(context))


def _of_partitions(context: dg.InputContext) -> frozenset[int] | None:
    """Returns the windows of the upstream partitions; None without partitions, and for all."""
    if not context.has_asset_partitions:
        return None
    partitions, keys = context.asset_partitions_def, context.asset_partition_keys
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return None
    if len(keys) == partitions.get_num_partitions():
        return None
    return frozenset(window_id(window_of(partitions, key)[0]) for key in keys)


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


def _of_upstream_run(context: dg.InputContext) -> Iterator[int]:
    """Yields the batches that this run stored of the asset, or else those of its last run."""
    page = _materializations(context, None)
    runs = [record.run_id for record in page.records]
    # Dagster also names this run if another one stored the asset.
    this_run = context.upstream_output.run_id if context.upstream_output else None
    run_id = this_run if this_run in runs else next(iter(runs), None)
    while page.records:
        for record in page.records:
            made = record.asset_materialization
            if record.run_id == run_id and made is not None and BATCH_ID in made.metadata:
                yield int(str(made.metadata[BATCH_ID].value))
        if page.records[-1].run_id != run_id or not page.has_more:
            return
        page = _materializations(context, page.cursor)


def _materializations(context: dg.InputContext, cursor: str | None) -> dg.EventRecordsResult:
    """Returns some materializations of the asset, the newest first."""
    return context.instance.fetch_materializations(context.asset_key, limit=_PAGE, cursor=cursor)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
