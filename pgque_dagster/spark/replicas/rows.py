"""The rows of a captured table, as tasks read them in a snapshot for a copy or a comparison.

Parsing a row from the JSON of an event costs more than storing it. So a value is read in its own
type if that gives the same value; `_PLAIN` has all such types. Values of other types are read as
the text in events.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import MalformedPayload
from ...client.operation import Call
from ...client.replicas.snapshot import Snapshot, event_queries, print_settings, value_queries
from ...client.replicas.source import SourceTable
from ...client.session import Session
from ..address import DatabaseAddress
from ..payload.changes import ChangeFormat, captured_column
from ..payload.parsing import EventParsing
from ..payload.reader import MISFIT
from ..reading.in_tasks import read_in_tasks
from ..reading.table import SIZE, query_batches, row_ranges
from .misfit import misfit_error
from .source import spark_columns

# Makes a column of a type from values that ADBC read; raises one of `MISFIT` if one does not fit.
_Make = Callable[[pa.Array, pa.DataType], pa.Array]


def rows_at(
    spark: SparkSession,
    session: Session,
    address: DatabaseAddress,
    source: SourceTable,
    snapshot: Snapshot | None,
    parts: Sequence[str] | None = None,
    check: str | None = None,
) -> DataFrame:
    """Returns rows of a table in a snapshot, which tasks read when the frame is computed.

    The snapshot must be held until then; without one, each task takes its own. `parts` are the FROM
    clauses of the tasks, each of which executes the statement `check` first.
    """
    if parts is None:
        size = session.run(Call(SIZE, (source.name,), lambda rows: rows[0][0]))
        parts = [f"{source.name}{where}" for where in row_ranges(size)]
    reader = RowReader(session, source, parts, check)
    shared = snapshot.id if snapshot else None

    def read(part: int) -> Iterator[pa.RecordBatch]:
        return reader.read(address.resolve(), part, shared)

    return read_in_tasks(spark, reader.parts, read, reader.columns)


class RowReader:
    """Reads the rows of a table in parts. It is sent to tasks.

    Args:
        parts: the FROM clause of each part.
        check: a statement that is executed before each part is read.

    Attributes:
        columns: the columns of the rows.
        parts: the numbers of the parts.
    """

    def __init__(
        self,
        session: Session,
        source: SourceTable,
        parts: Sequence[str],
        check: str | None = None,
    ) -> None:
        fields = spark_columns(source)
        self.columns = t.StructType([t.StructField(x.name, x.dataType) for x in fields])
        self.parts = range(len(parts))
        self._table = source.name
        self._settings = [*([check] if check else []), *print_settings(session)]
        kinds = {x.name: type(x.dataType) for x in fields}
        plain = {name: _PLAIN[kind][0] for name, kind in kinds.items() if kind in _PLAIN}
        self._values = value_queries(session, source, plain, parts)
        self._events = event_queries(session, source, parts)
        self._schema = pa.schema(
            [(x.name, captured_column(x.dataType, x.name).arrow) for x in fields]
        )
        form = ChangeFormat(self.columns, source.key or None, "malformed")
        self._parsing = EventParsing(form, (), partial(misfit_error, source=source))

    def read(self, url: str, part: int, snapshot: str | None) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a part, in an exported snapshot or its own.

        Raises:
            MalformedPayload: if the replica cannot hold a value.
            ConnectionFailed: if this host cannot reach the database, or the connection broke.
        """
        makers = [_maker(field.dataType, field.name) for field in self.columns]
        kinds = self._schema.types
        for batch in self._batches(url, self._values[part], snapshot):
            try:
                columns = [
                    make(values, kind)
                    for make, values, kind in zip(makers, batch.columns, kinds, strict=True)
                ]
            except MISFIT:
                # Raises an error that names the row and the value.
                deque(self.read_as_events(url, part, snapshot), maxlen=0)
                if snapshot is not None:
                    raise
                raise MalformedPayload(
                    f"a value of {self._table} that does not fit was changed while it was read",
                    "The next attempt reads it again.",
                ) from None
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def read_as_events(self, url: str, part: int, snapshot: str | None) -> Iterator[pa.RecordBatch]:
        """Reads the same rows as the JSON of events."""
        events = self._batches(url, self._events[part], snapshot)
        for parsed in self._parsing.batches(events, fails=True):
            rows = parsed.column(len(self._parsing.format.result) - 1)
            yield pa.RecordBatch.from_arrays(rows.flatten(), schema=self._schema)

    def _batches(self, url: str, query: str, snapshot: str | None) -> Iterator[pa.RecordBatch]:
        # Values of other types are read as their text.
        return query_batches(url, self._table, query, snapshot, self._settings, built_in=True)


def _maker(kind: t.DataType, name: str) -> _Make:
    if plain := _PLAIN.get(type(kind)):
        return plain[1]
    if isinstance(kind, t.StringType):
        return _same
    captured = captured_column(kind, name)
    return lambda texts, _: captured.make(texts.to_pylist())


def _same(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values


def _floats(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # PostgreSQL prints all NaN values the same, but their bits may differ.
    return pc.if_else(pc.is_nan(values), pa.scalar(math.nan, kind), values)


def _times(
    values: pa.Array, kind: pa.DataType, first: date = datetime.min, last: date = datetime.max
) -> pa.Array:
    """Refuses times outside the years 1 to 9999. ADBC reads infinity as one."""
    ends = pa.scalar(first, kind), pa.scalar(last, kind)
    if pc.any(pc.or_(pc.less(values, ends[0]), pc.greater(values, ends[1]))).as_py():
        raise ValueError("a time is outside the years 1 to 9999")
    return values


# The types that are not read as in events: the expression that is read, and its conversion.
_PLAIN: dict[type[t.DataType], tuple[str, _Make]] = {
    t.BooleanType: ("{}", _same),
    t.ShortType: ("{}", _same),
    t.IntegerType: ("{}", _same),
    t.LongType: ("{}", _same),
    t.FloatType: ("{}", _floats),
    t.DoubleType: ("{}", _floats),
    # ADBC converts numeric to text more slowly than PostgreSQL.
    t.DecimalType: ("{}::text", pc.cast),
    t.BinaryType: ("{}", _same),
    t.DateType: ("{}", partial(_times, first=date.min, last=date.max)),
    t.TimestampType: (
        "{}",
        partial(
            _times, first=datetime.min.replace(tzinfo=UTC), last=datetime.max.replace(tzinfo=UTC)
        ),
    ),
    t.TimestampNTZType: ("{}", _times),
}
