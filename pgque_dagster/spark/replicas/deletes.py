"""The rows to write into a lake replica, including kept rows that the source no longer has.

`client/replicas/deletes.py` says what is kept. Tasks join the new rows with rows of the replica.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.replicas.deletes import (
    DELETED_TICK,
    FROM_TICK,
    HARD,
    HISTORY,
    MARKS,
    SOFT,
    TO_TICK,
    Deletes,
    end_mark,
    unfit_type,
)
from .source import DELETED, as_compared

_OLD, _NEW = "__pgque_old", "__pgque_new"


def mark_columns(deletes: Deletes) -> list[t.StructField]:
    """Returns the columns of a replica besides those of its source."""
    return [
        t.StructField(name, t.LongType(), metadata={"comment": comment})
        for name, comment in MARKS[deletes].items()
    ]


def live_rows(rows: DataFrame, deletes: Deletes) -> DataFrame:
    """Returns the rows of a replica that the source also has."""
    mark = end_mark(deletes)
    return rows if mark is None else rows.where(f.col(mark).isNull())


def copied_rows(
    rows: DataFrame,
    old: DataFrame | None,
    columns: t.StructType,
    key: Sequence[str],
    deletes: Deletes,
    tick_id: int | None,
) -> DataFrame:
    """Returns the rows of a replica after a copy.

    Args:
        rows: the rows of the copy.
        old: the rows of the replica; None if there is no replica.
        columns: the columns of the replica after the copy.
        key: the columns of the source's key.
        deletes: what is kept.
        tick_id: the tick of the copy, if rows are kept.

    Raises:
        InvalidArgument: if a kept value does not fit the new type of its column.
    """
    if deletes == HARD:
        return rows
    if old is None:  # Unshuffled, so that rows that are together in the source stay together.
        begun = {FROM_TICK: f.lit(tick_id)} if deletes == HISTORY else {}
        first = rows.withColumns(begun)
        return first.select(_row(first, columns).alias(_NEW)).select(f"{_NEW}.*")
    old = _fitted(old, columns)
    if deletes == HISTORY:
        ended = old.where(f.col(TO_TICK).isNotNull())
        new = rows.withColumn(DELETED, f.lit(False))
        versions = _versions(new, old, "full", columns, key, tick_id)
        # A row that another program added twice is kept only once.
        return versions.unionByName(ended.dropDuplicates([*key, FROM_TICK]))
    stored = old.dropDuplicates(list(key)).select(*_named(key), _row(old, columns).alias(_OLD))
    both = _with_new(rows, columns, key).join(stored, list(key), "full")
    was, row = f.col(_OLD), f.col(_NEW)
    gone = was.withField(DELETED_TICK, f.coalesce(was[DELETED_TICK], f.lit(tick_id).cast("long")))
    # It may have values of columns that the source no longer has.
    stays = was[DELETED_TICK].isNull() & _are_same(was, row, rows.columns, columns)
    kept = f.when(row.isNull(), gone).when(stays, was).otherwise(row)
    return both.select(kept.alias(_OLD)).select(f"{_OLD}.*")


def changed_rows(
    changes: DataFrame,
    old: DataFrame | None,
    columns: t.StructType,
    key: Sequence[str],
    deletes: Deletes,
    tick_id: int | None,
) -> DataFrame:
    """Returns the changes that a batch makes in a replica, with `DELETED`.

    `changes` are the result of `net_changes`. `old` are the rows of the replica, for `history` or
    if it has more columns than its source.
    """
    if old is not None:
        keys = f.broadcast(changes.select(*_named(key)))
        old = old.join(keys, list(key), "left_semi")
    if deletes == SOFT:
        changes = _marked(changes, old, columns, key, tick_id)
    elif old is not None:
        changes = _versions(changes, old, "left", columns, key, tick_id)
    else:
        return changes
    return changes.withColumn(DELETED, f.lit(False))


def _marked(
    changes: DataFrame,
    old: DataFrame | None,
    columns: t.StructType,
    key: Sequence[str],
    tick_id: int | None,
) -> DataFrame:
    """Returns the changed rows. Those that are gone keep the values that only the replica has."""
    is_gone = f.col(DELETED)
    marked = changes.withColumn(DELETED_TICK, f.when(is_gone, f.lit(tick_id).cast("long")))
    if old is None:
        return marked
    kept = [name for name in columns.names if name not in marked.columns]
    stored = old.dropDuplicates(list(key)).select(*_named([*key, *kept]))
    values = (f.when(is_gone, _column(name)).alias(name) for name in kept)
    return marked.join(stored, list(key), "left").select(*_named(marked.columns), *values)


def _versions(
    new: DataFrame,
    old: DataFrame,
    how: str,
    columns: t.StructType,
    key: Sequence[str],
    tick_id: int | None,
) -> DataFrame:
    """Returns the versions that end or begin at a tick and, for a full join, those that stay."""
    last = f.max_by(_row(old, columns), FROM_TICK).alias(_OLD)
    both = _with_new(new, columns, key).join(old.groupBy(*_named(key)).agg(last), list(key), how)
    was, row = f.col(_OLD), f.col(_NEW)
    is_live = was.isNotNull() & was[TO_TICK].isNull()
    is_there = row.isNotNull() & ~f.coalesce(DELETED, f.lit(True))
    names = [name for name in new.columns if name != DELETED]
    stays = is_live & is_there & _are_same(was, row, names, columns)
    # A database that went back in time repeats tick ids: no version begins before another one ends.
    tick = f.greatest(f.lit(tick_id).cast("long"), was[FROM_TICK] + 1, was[TO_TICK])
    before = f.when(is_live & ~stays, was.withField(TO_TICK, tick))
    if how == "full":
        before = before.when(stays, was)
    now = f.when(is_there & ~stays, row.withField(FROM_TICK, tick))
    # Not inline: without further columns, Spark 4.3 treats its rows as empty, or fails.
    found = both.select(f.explode(f.array(before, now)).alias(_OLD))
    return found.where(f.col(_OLD).isNotNull()).select(f"{_OLD}.*")


def _are_same(old: Column, row: Column, names: Sequence[str], columns: t.StructType) -> Column:
    """Returns whether two rows exist, and have the same values in some columns."""
    same = old.isNotNull() & row.isNotNull()
    for name in names:
        kind = columns[name].dataType
        same &= as_compared(row[name], kind).eqNullSafe(as_compared(old[name], kind))
    return same


def _with_new(new: DataFrame, columns: t.StructType, key: Sequence[str]) -> DataFrame:
    """Returns the key of each row, the row with the replica's columns, and whether it is gone."""
    deleted = [DELETED] if DELETED in new.columns else []
    return new.select(*_named(key), *deleted, _row(new, columns).alias(_NEW))


def _row(frame: DataFrame, columns: t.StructType) -> Column:
    values = [_column(x.name) if x.name in frame.columns else f.lit(None) for x in columns]
    return f.struct(
        *(value.cast(x.dataType).alias(x.name) for value, x in zip(values, columns, strict=True))
    )


def _fitted(old: DataFrame, columns: t.StructType) -> DataFrame:
    """Converts kept rows to the current types of the columns, if that preserves their values."""
    now = {x.name: x.dataType for x in columns}
    was = {x.name: x.dataType for x in old.schema}
    for name in [name for name in was if name in now and now[name] != was[name]]:
        types = now[name].simpleString(), was[name].simpleString()
        if isinstance(now[name], t.ArrayType) != isinstance(was[name], t.ArrayType):
            raise unfit_type(name, *types)
        there_and_back = _column(name).try_cast(now[name]).try_cast(was[name])
        is_lost = ~there_and_back.eqNullSafe(_column(name))
        if len({"timestamp" in each.replace("timestamp_ntz", "") for each in types}) > 1:
            # The time zone in which the source converted its rows is unknown.
            is_lost = _column(name).isNotNull()
        if old.where(is_lost).limit(1).count():
            raise unfit_type(name, *types)
    return old.select(_row(old, columns).alias(_OLD)).select(f"{_OLD}.*")


def _named(names: Sequence[str]) -> list[Column]:
    return [_column(name) for name in names]


def _column(name: str) -> Column:
    return f.col(f"`{name}`")
