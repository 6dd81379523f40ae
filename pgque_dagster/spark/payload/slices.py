"""Reads slices and parses their events on executors, and learns which events are malformed.

Which events of a slice are malformed depends only on the slice: its events are fixed, and parsing
is deterministic. So each task that has read a slice to its end reports the slice's malformed events
to the driver, with an accumulator. It does not matter which attempt of which task it was, how often
the slice was read, or what Spark did with the rows. Without a report, for example because of a
limit, a filter that is always false, or an unused DataFrame, a slice is unknown. Then the slices
are read again, so a set of malformed events is never incomplete.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from ...client.models import Slice
from ..address import DatabaseAddress
from ..reading import arrow
from ..reading.in_tasks import read_in_tasks, renamed
from .parsing import ID, REASON, REASONS, TEXT, EventParsing, explained, fitting, without_reasons

# A report is part of a task's result, which the driver holds. A larger one is not sent.
_REPORT_BYTES = 1024 * 1024
_REPORT = pa.schema([("ev_id", pa.int64()), (REASON, pa.string()), (TEXT, pa.string())])
_EXPLAINED = from_arrow_schema(_REPORT)

# The malformed events of a slice, by the reader's token and the slice's number.
Reported = dict[tuple[str, int], pa.Table]
_Parser = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class _Merge(AccumulatorParam[Reported]):
    """Merges reports. Two reports of a slice are equal."""

    def zero(self, value: Reported) -> Reported:
        return {}

    def addInPlace(self, value1: Reported, value2: Reported) -> Reported:  # noqa: N802
        value1.update(value2)
        return value1


# The current context's accumulator. One for all batches: Spark keeps each until the process ends.
_accumulators: dict[str, Accumulator[Reported]] = {}


class ParsedSlices:
    """The slices of a batch, parsed where they are read."""

    def __init__(
        self,
        spark: SparkSession,
        address: DatabaseAddress,
        slices: Sequence[Slice],
        parsing: EventParsing,
    ) -> None:
        self._spark = spark
        self._address = address
        self._slices = slices
        self._parsing = parsing
        self._token = uuid.uuid4().hex
        self._reports: Accumulator[Reported] | None = None
        self._persisted: DataFrame | None = None
        self._explained: DataFrame | None = None

    def all(self) -> DataFrame:
        """Returns the kept columns and the result for all events."""
        return self._rows(lambda nr, events: map(without_reasons, events))

    def persisted(self) -> DataFrame:
        """Returns the events that fit; they are persisted once `malformed` was read."""
        schema = t.StructType([*self._parsing.schema(), *REASONS])
        self._persisted = parsed = self._read(lambda nr, events: events, schema).persist()
        malformed = parsed.where(parsed[REASON].isNotNull())
        self._explained = malformed.select(f.col(ID).alias("ev_id"), REASON, TEXT)
        return self._parsing.rows(parsed.where(parsed[REASON].isNull()))

    def fitting(self) -> DataFrame:
        """Returns the events that fit, and makes the tasks that read them report the others.

        Spark Connect has no accumulators, so this needs a classic session.
        """
        reports, token = _accumulator(self._spark.sparkContext), self._token
        self._reports = reports

        def parse(nr: int, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found: list[pa.RecordBatch] = []
            size = 0
            for batch in events:
                wrong = explained(batch)
                size += wrong.nbytes if wrong.num_rows else 0
                if wrong.num_rows and size <= _REPORT_BYTES:
                    found.append(wrong)
                yield fitting(batch)
            if size <= _REPORT_BYTES:
                reports.add({(token, nr): pa.Table.from_batches(found, _REPORT)})

        return self._rows(parse)

    @contextmanager
    def malformed(self) -> Iterator[DataFrame | pa.Table]:
        """Lends ev_id, `REASON` and `TEXT` of the malformed events while the block runs.

        Yields:
            A table if all slices were reported; otherwise a DataFrame, which reads the slices again
            unless they are persisted with their malformed events.
        """
        found = self._reported() if self._explained is None else self._explained
        if found is not None:
            yield found
            return
        again = self._read(lambda nr, events: map(explained, events), _EXPLAINED).persist()
        try:
            yield again
        finally:
            again.unpersist()

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
        parsed = self._read(parse, self._parsing.schema())
        return renamed(parsed, self._parsing.rows(parsed))

    def _read(self, parse: _Parser, schema: t.StructType) -> DataFrame:
        address, parsing = self._address, self._parsing

        def read(part: tuple[int, Slice]) -> Iterator[pa.RecordBatch]:
            nr, piece = part
            events = arrow.read_slice(address.resolve(), piece, parsing.needed)
            return parse(nr, parsing.batches(events))

        return read_in_tasks(self._spark, list(enumerate(self._slices)), read, schema)


def _accumulator(context: SparkContext) -> Accumulator[Reported]:
    name = str(context.applicationId)
    if name not in _accumulators:
        _accumulators.clear()
        _accumulators[name] = context.accumulator({}, _Merge())
    return _accumulators[name]
