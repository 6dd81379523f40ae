"""The columns that a replica gets when its source is altered, and the values of its rows in them.

The record of each commit lists the source columns whose values the replica has, by their numbers,
which are never reused. So an attempt knows whether an earlier one has altered the replica, which
names alone do not show.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from ...client.replicas.deletes import HARD, end_mark
from ...client.replicas.shape import Altered
from ..payload.changes import of_texts
from ..payload.reader import MISFIT
from .stored import StoredReplica, Table


def columns_in(shape: str) -> str:
    """Returns a text that distinguishes the columns that a replica has with a table's shape."""
    if not shape.startswith("{"):  # An earlier version stored a hash.
        return ""
    facts = json.loads(shape)
    columns = json.dumps(facts.get("has", facts["columns"]), sort_keys=True)
    return hashlib.sha256(columns.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class NewColumns:
    """The columns that a replica gets. It is sent to tasks.

    Attributes:
        schema: all of them.
        names: the current names of the columns that it already has.
        dropped: the columns that it loses.
        retyped: the columns whose type changes.
        values: the values of added columns that are not null, as arrays of one value.
        mark: the column that is not null in rows that the source no longer has, if there is one.
    """

    schema: t.StructType
    names: Mapping[str, str]
    dropped: frozenset[str]
    retyped: frozenset[str]
    values: Mapping[str, pa.Array]
    mark: str | None

    @property
    def added(self) -> t.StructType:
        """The added columns."""
        return t.StructType([x for x in self.schema if x.name not in self.names])

    @property
    def renamed(self) -> dict[str, str]:
        """The renamed columns, with their earlier names."""
        return {name: was for name, was in self.names.items() if name != was}

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with these columns, except those that are null.

        Rows that the source no longer has never had an added column.
        """
        there = set(rows.schema.names)
        found = {name: rows[was] for name, was in self.names.items() if was in there}
        for name, value in self.values.items():
            found[name] = pa.repeat(value[0], rows.num_rows)
            if self.mark is not None:
                is_there = pc.is_null(rows[self.mark])
                found[name] = pc.if_else(is_there, found[name], pa.scalar(None, value.type))
        return pa.RecordBatch.from_pydict(found)


def new_columns(
    replica: StoredReplica[Table], stored: t.StructType, altered: Altered
) -> NewColumns | None:
    """Returns the columns that a replica gets; None if it cannot have them without a copy."""
    wanted = {field.name: field for field in replica.columns()}
    dropped = set(altered.dropped) & set(stored.names) if replica.deletes == HARD else set()
    now = {was: name for name, was in altered.renamed.items() if name in wanted}
    kept = {now.get(x.name, x.name): x for x in stored if x.name not in dropped}
    added = [wanted[name] for name in altered.added if name in wanted]
    fields = [
        t.StructField(
            name, wanted.get(name, x).dataType, metadata=_with_comment(x, wanted.get(name))
        )
        for name, x in kept.items()
    ]
    schema, names = t.StructType([*fields, *added]), {name: x.name for name, x in kept.items()}
    types = {name: x.dataType.simpleString() for name, x in kept.items()}
    retyped = {x.name for x in fields if x.dataType.simpleString() != types[x.name]}
    is_clear = len({x.name.lower() for x in schema}) == len(stored) - len(dropped) + len(added)
    if not is_clear or not replica.fits(schema):
        return None
    if not all(_is_wider(wanted[name].dataType, kept[name].dataType) for name in retyped):
        return None
    texts = {x: altered.added[x.name] for x in added if altered.added[x.name] is not None}
    try:
        values = {x.name: _value(x, text) for x, text in texts.items()}
    except MISFIT:
        return None
    mark = end_mark(replica.deletes)
    return NewColumns(schema, names, frozenset(dropped), frozenset(retyped), values, mark)


def _with_comment(stored: t.StructField, wanted: t.StructField | None) -> dict[str, Any]:
    """Returns the metadata of a stored column with the comment of the source's column."""
    if wanted is None:
        return stored.metadata
    others = {key: value for key, value in stored.metadata.items() if key != "comment"}
    return {**others, **wanted.metadata}


def _value(column: t.StructField, text: str | None) -> pa.Array:
    """Returns an array with the value that a text in events stands for."""
    if isinstance(column.dataType, t.BooleanType):
        text = {"true": "t", "false": "f"}.get(str(text), text)
    return of_texts(column.dataType, column.name)([text])


def _is_wider(now: t.DataType, was: t.DataType) -> bool:
    """Returns whether a type's values stay the same in another type that the formats allow."""
    return (
        isinstance(now, t.DecimalType)
        and isinstance(was, t.DecimalType)
        and now.scale == was.scale
        and now.precision > was.precision
    )
