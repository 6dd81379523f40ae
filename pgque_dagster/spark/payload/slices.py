"""Reads slices and parses their payloads on executors, and learns which events are malformed.

Which events of a slice are malformed depends on the slice alone: its events are fixed, and parsing
is deterministic. So each task that has read a slice to its end reports the slice's malformed events
to the driver, by an accumulator. It does not matter which attempt of which task it was, how often
the slice was read, or what Spark did with the rows. A slice without a report is unknown, whatever
the reason: a limit, a filter that is always false, a DataFrame that nobody used. Then the slices
are read again, so a set of malformed events is never incomplete.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Accumulator, AccumulatorParam, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.utils import is_remote

from ...client.models import Slice
from ..address import DatabaseAddress
from ..reading import arrow
from .malformed_columns import MALFORMED, REASON, TEXT
from .parsing import ID, PayloadRead, needed_columns

# A report is part of a task's result, which the driver holds. A larger one is not sent.
_REPORT_BYTES = 1024 * 1024

_EXPLAINED = t.StructType(
    [
        t.StructField("ev_id", t.LongType()),
        t.StructField(REASON, t.StringType()),
        t.StructField(TEXT, t.StringType()),
    ]
)
_REPORT = pa.schema([("ev_id", pa.int64()), (REASON, pa.string()), (TEXT, pa.string())])

# The columns of `PayloadRead.batches` besides those of its schema.
_REASONS = t.StructType(
    [
        t.StructField(ID, t.LongType()),
        t.StructField(MALFORMED, t.BooleanType()),
        t.StructField(REASON, t.StringType()),
        t.StructField(TEXT, t.StringType()),
    ]
)

# The malformed events of a slice, by the reader's token and the slice's number.
Reported = dict[tuple[str, int], pa.Table]
_Parser = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class _Merge(AccumulatorParam[Reported]):
    """Unites reports. Two reports of a slice are equal."""

    def zero(self, value: Reported) -> Reported:
        return {}

    def addInPlace(self, value1: Reported, value2: Reported) -> Reported:  # noqa: N802
        value1.update(value2)
        return value1


# Of the current context. One for all batches, because Spark keeps each until the process ends.
_accumulators: dict[str, Accumulator[Reported]] = {}


class PayloadSlices:
    """The slices of a batch, read with parsed payloads.

    Args:
        spark: the session.
        address: how executors find the database.
        slices: the slices.
        payloads: how to parse.
    """

    def __init__(
        self,
        spark: SparkSession,
        address: DatabaseAddress,
        slices: Sequence[Slice],
        payloads: PayloadRead,
    ) -> None:
        self._spark = spark
        self._address = address
        self._slices = slices
        self._payloads = payloads
        self._token = uuid.uuid4().hex
        self._reports: Accumulator[Reported] | None = None
        self._persisted: DataFrame | None = None
        self._explained: DataFrame | None = None

    def all(self) -> DataFrame:
        """Returns the kept columns and the fields of all events."""
        return self._rows(lambda nr, events: map(_without_reasons, events))

    def persisted(self) -> DataFrame:
        """Reads all slices and persists the events that fit. `malformed` then reads nothing."""
        if not is_remote():
            self._persisted = fitting = self.fitting().persist()
            # Spark caches each slice, so it reads each to its end, and each is reported.
            fitting.count()
            return fitting
        # Without accumulators, the malformed events are persisted among the others.
        schema = t.StructType([*self._payloads.schema(), *_REASONS])
        self._persisted = parsed = self._read(lambda nr, events: events, schema).persist()
        wrong = parsed.where(parsed[MALFORMED])
        self._explained = wrong.select(f.col(ID).alias("ev_id"), REASON, TEXT)
        return self._payloads.rows(parsed.where(~parsed[MALFORMED]))

    def fitting(self) -> DataFrame:
        """Returns the events that fit, and has the tasks that read them report the others.

        Spark Connect has no accumulators, so this needs a classic session.
        """
        reports, token = _accumulator(self._spark.sparkContext), self._token
        self._reports = reports

        def parse(nr: int, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = _Report()
            for batch in events:
                found.add(_explained(batch))
                yield _fitting(batch)
            if found.is_whole:
                reports.add({(token, nr): found.table()})

        return self._rows(parse)

    @contextmanager
    def malformed(self) -> Iterator[DataFrame | pa.Table]:
        """Lends ev_id, `REASON` and `TEXT` of the malformed events while the block runs.

        Yields:
            A table if all slices were reported, else a DataFrame, which reads the slices again
            unless they are persisted with their malformed events.
        """
        found = self._reported() if self._explained is None else self._explained
        if found is not None:
            yield found
            return
        explained = self._read(lambda nr, events: map(_explained, events), _EXPLAINED).persist()
        try:
            yield explained
        finally:
            explained.unpersist()

    def forget(self) -> None:
        """Frees what is persisted, and the reports."""
        if self._persisted is not None:
            self._persisted.unpersist()
        if self._reports is not None:
            for nr in range(len(self._slices)):
                self._reports.value.pop((self._token, nr), None)

    def _reported(self) -> pa.Table | None:
        if self._reports is None:
            return None
        found = [self._reports.value.get((self._token, nr)) for nr in range(len(self._slices))]
        if any(table is None for table in found):
            return None
        return pa.concat_tables([_REPORT.empty_table(), *found])

    def _rows(self, parse: _Parser) -> DataFrame:
        return self._payloads.rows(self._read(parse, self._payloads.schema()))

    def _read(self, parse: _Parser, schema: t.StructType) -> DataFrame:
        slices, address, payloads = tuple(self._slices), self._address, self._payloads

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for nr in batch.column(0).to_pylist():
                    columns = needed_columns(payloads.keep)
                    events = arrow.read_slice(address.resolve(), slices[nr], columns)
                    yield from parse(nr, payloads.batches(events))

        # Each task has one number of a slice.
        numbers = self._spark.range(0, len(slices), 1, max(1, len(slices)))
        return numbers.mapInArrow(read, schema)


class _Report:
    """The malformed events of one slice, unless they are too large to send."""

    def __init__(self) -> None:
        self._found: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all malformed events are in the report."""
        return self._bytes <= _REPORT_BYTES

    def add(self, explained: pa.RecordBatch) -> None:
        """Adds malformed events."""
        if not explained.num_rows:
            return
        self._bytes += explained.nbytes
        if self.is_whole:
            self._found.append(explained)
        else:
            self._found.clear()

    def table(self) -> pa.Table:
        """Returns the malformed events."""
        return pa.Table.from_batches(self._found, _REPORT)


def _accumulator(context: SparkContext) -> Accumulator[Reported]:
    name = str(context.applicationId)
    if name not in _accumulators:
        _accumulators.clear()
        _accumulators[name] = context.accumulator({}, _Merge())
    return _accumulators[name]


def _explained(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns ev_id, `REASON` and `TEXT` of the malformed events of `PayloadRead.batches`."""
    found = batch.filter(batch.column(MALFORMED)).select([ID, REASON, TEXT])
    return found.rename_columns(_EXPLAINED.names)


def _fitting(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the kept columns and the fields of the events of a batch that fit."""
    return _without_reasons(batch.filter(pc.invert(batch.column(MALFORMED))))


def _without_reasons(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(_REASONS.names)
