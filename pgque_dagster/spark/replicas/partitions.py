"""Finds what changes in a replica when partitions come and go; `client/replicas/partitions.py`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client.models import Slice
from ...client.replicas.deletes import Deletes
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.source import SourceTable
from ..batch import SparkBatch, attempt_of
from ..reading import arrow
from .events import CHANGE_COLUMNS
from .rows import rows_at
from .source import DELETED, late_changes

_IS_THERE = "__pgque_is_there"


@contextmanager
def partition_changes(
    batch: SparkBatch,
    source: SourceTable,
    deletes: Deletes,
    stored: DataFrame,
    events: Sequence[Slice],
    new: Sequence[str],
    snapshot: Snapshot,
) -> Iterator[DataFrame]:
    """Finds the changes of a table until a snapshot, which is held during the block.

    `stored` are the rows of the replica that the source had, `events` those that the replica lacks,
    and `new` the FROM clauses with the rows of the new partitions.

    Yields:
        The changes, as `net_changes` returns them.
    """
    spark, session, key = batch.spark, batch.claim.session, list(source.key)
    address = attempt_of(batch).address
    columns = [f.col(f"`{x.name}`") for x in source.columns]
    names = [f.col(f"`{name}`") for name in key]
    of_key = replace(source, columns=tuple(x for x in source.columns if x.name in key))
    keys = rows_at(spark, session, address, of_key, snapshot)
    keys = keys.withColumn(_IS_THERE, f.lit(True)).persist(StorageLevel.DISK_ONLY)
    found = arrow.read_slices(spark, address, events, CHANGE_COLUMNS)
    changes = late_changes(found, source, deletes).persist(StorageLevel.DISK_ONLY)
    try:
        rows = changes
        if new:
            there = rows_at(spark, session, address, source, snapshot, new)
            there = there.select(*columns, f.lit(False).alias(DELETED))
            rows = rows.join(there.select(*names), key, "left_anti")
        rows = rows.join(keys, key, "left")
        is_gone = f.col(DELETED) | f.col(_IS_THERE).isNull()
        rows = rows.select(*columns, is_gone.alias(DELETED))
        gone = stored.join(keys, key, "left_anti").join(changes.select(*names), key, "left_anti")
        rows = rows.unionByName(gone.select(*columns, f.lit(True).alias(DELETED)))
        yield rows.unionByName(there) if new else rows
    finally:
        keys.unpersist()
        changes.unpersist()
