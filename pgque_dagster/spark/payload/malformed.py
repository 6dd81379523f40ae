"""Sets the malformed events of a batch aside, and fails if there are too many.

One wrong column type makes every event malformed. Then the batch fails and nothing is set aside, so
a mistake in the schema loses no event. If the whole batch is a few malformed events, they say
nothing about the schema, so the events that the consumer finished before count as well. So one bad
event does not stop a working consumer.
"""

import logging
from array import array
from collections.abc import Sequence
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...client.errors import InvalidArgument, MalformedPayload
from ...client.read_batch import ReadBatch
from .. import failed_events
from .parsing import REASON, TEXT

_log = logging.getLogger(__name__)

OnMalformed = Literal["dead_letter", "fail", "keep"]

DEFAULT_MAX_MALFORMED = 0.1
# Fewer malformed events than this never exceed the share: 1 of 3 says nothing about the schema.
MIN_MALFORMED = 5
# With five malformed events, this many finished events and the batch exceed the default share.
_HISTORY = int(MIN_MALFORMED / DEFAULT_MAX_MALFORMED) - MIN_MALFORMED

_PREFIX = "malformed payload: "
_SAMPLES = 3
# How many events the hint names, and the log lists with their reasons.
_NAMED = 100
_SAMPLE_LENGTH = 200
_TEXT_LENGTH = 40


def check_options(on_malformed: str, max_malformed: float) -> None:
    """Refuses an unknown policy, and a share that is not a number from 0 to 1."""
    policies = get_args(OnMalformed)
    if on_malformed not in policies:
        raise InvalidArgument(
            f"on_malformed is {on_malformed!r}", f"It may be {', '.join(policies)}."
        )
    is_number = isinstance(max_malformed, int | float) and not isinstance(max_malformed, bool)
    # The comparison is also false for NaN.
    if not is_number or not 0 <= max_malformed <= 1:
        raise InvalidArgument(
            f"max_malformed is {max_malformed!r}, but it is a share of the batch's events",
            "Give a number from 0 to 1: 0.1 for a tenth of them, 1.0 to allow all.",
        )


class MalformedEvents:
    """The malformed events of one batch."""

    def __init__(self, spark: SparkSession, batch: ReadBatch, events: int) -> None:
        self._spark = spark
        self._batch = batch
        self._events = events
        self._counted = array("q")

    def settle(
        self,
        explained: DataFrame | pa.Table,
        policy: OnMalformed,
        max_malformed: float,
    ) -> None:
        """Makes events dead letters with the ack, unless there are too many.

        Args:
            explained: ev_id, `REASON` and `TEXT` of all events that one call found malformed: a
                table if the driver has them, otherwise a DataFrame, which is collected.
            policy: `dead_letter` or `fail`.
            max_malformed: the share of the batch's events that this call and earlier ones together
                may set aside. 1 allows all, and such a call does not count for other calls.

        Raises:
            MalformedPayload: under `fail`, or if there are too many. If all events of the batch are
                malformed and they are few, the events that the consumer finished before decide.
        """
        # The ids first: if there are too many, the reasons are not collected.
        ids: Sequence[int] = failed_events.ids_of(_chosen(explained, "ev_id")["ev_id"].unique())
        if not ids:
            return
        if policy == "fail":
            raise MalformedPayload(
                f"{self._how_many(len(ids))}: {self._samples(explained, ids)}",
                "Correct the schema, or pass another on_malformed.",
            )
        if max_malformed < 1:
            self._check(explained, ids, max_malformed)
        ids, reasons = failed_events.from_table(_chosen(explained, "ev_id", REASON))
        first, why = min(zip(ids, reasons, strict=True))
        _log.warning(f"{self._how_many(len(ids))}: event {first}: {why}")
        # Equal texts share one object, because most reasons are equal.
        prefixed = {why: f"{_PREFIX}{why}" for why in set(reasons)}
        self._batch.dead_letter(ids, reason=[prefixed[why] for why in reasons])

    def _check(
        self, explained: DataFrame | pa.Table, ids: Sequence[int], max_malformed: float
    ) -> None:
        counted = self._counted + array("q", ids)
        count: int = pc.count_distinct(pa.array(counted, pa.int64())).as_py()
        if _are_too_many(count, self._events, max_malformed):
            why: str | None = ""
        elif count == self._events:
            why = self._why_the_schema(count, max_malformed)
        else:
            why = None
        if why is not None:
            raise MalformedPayload(
                f"{self._how_many(count)}{why}: {self._samples(explained, ids)}",
                "No event is acked or set aside. Correct the schema and materialize again, or raise"
                f" max_malformed, which is {max_malformed:g} (1 allows all).{self._way_out(ids)}",
            )
        # A refused call sets nothing aside, so it does not count for the next one.
        self._counted = counted

    def _why_the_schema(self, count: int, max_malformed: float) -> str | None:
        """Returns why the few events of a batch are probably malformed because of the schema.

        None if the consumer finished other events before, and few of its newest ones failed.
        """
        call = self._batch.history_call(_HISTORY)
        if call is None:
            return ""
        history = self._batch.session.run(call)
        if history.finished <= history.failed:
            return ", and the consumer finished no well-formed event before"
        if _are_too_many(history.failed + count, history.finished + count, max_malformed):
            return (
                f", and {history.failed} of the last {history.finished} events of the consumer are"
                " dead letters or wait for a retry: the schema of the events probably changed"
            )
        return None

    def _way_out(self, ids: Sequence[int]) -> str:
        """Returns how to set single events aside; nothing for a window, which has no consumer."""
        batch = self._batch
        if batch.history_call(1) is None:
            return ""
        name = batch.consumer if batch.slot is None else f"{batch.consumer}#{batch.slot}"
        named = " ".join(map(str, sorted(ids))) if len(ids) <= _NAMED else "EVENT..."
        return (
            " If the events are wrong, not the schema, set them aside:"
            f" `pgque dead-letters add {batch.queue} {name} {named}`;"
            f" `pgque peek {batch.queue} --consumer {name}` shows them."
        )

    def _how_many(self, count: int) -> str:
        batch = self._batch
        return (
            f"{count} of {self._events} events of batch {batch.batch_id} of"
            f" {batch.queue}/{batch.consumer} are malformed"
        )

    def _samples(self, explained: DataFrame | pa.Table, ids: Sequence[int]) -> str:
        """Returns the first events with their reasons, and a description of each payload.

        The description has the names and types of the payload's fields, or the beginning of a
        payload that is not an object. It leaves out the values of objects, which may be secret.
        """
        first = sorted(ids)[:_NAMED]
        if isinstance(explained, DataFrame):
            few = explained.where(f.col("ev_id").isin(first))
        else:
            is_first = pc.is_in(explained["ev_id"], pa.array(first))
            few = self._spark.createDataFrame(explained.filter(is_first))
        found = f.expr(f"schema_of_variant(try_parse_json({TEXT}))").alias("found")
        rows = few.select("ev_id", REASON, TEXT, found).orderBy("ev_id").collect()
        samples = [
            f"event {row.ev_id}: {_cut(row[REASON])} ({_described(row[TEXT], row.found)})"
            for row in rows
        ]
        if len(ids) > _SAMPLES:
            _log.error("malformed events:\n" + "\n".join(samples))
        return "; ".join(samples[:_SAMPLES])


def _are_too_many(count: int, events: int, max_malformed: float) -> bool:
    return count >= MIN_MALFORMED and count / events > max_malformed


def _chosen(explained: DataFrame | pa.Table, *columns: str) -> pa.Table:
    chosen = explained.select(list(columns))
    return chosen.toArrow() if isinstance(chosen, DataFrame) else chosen


def _described(text: str | None, found: str | None) -> str:
    if found is None or not found.startswith("OBJECT<"):
        return f"it begins with {(text or '')[:_TEXT_LENGTH]!r}"
    return _cut(f"it has the fields {found.removeprefix('OBJECT<').removesuffix('>')}")


def _cut(text: str) -> str:
    return text if len(text) <= _SAMPLE_LENGTH else f"{text[:_SAMPLE_LENGTH]}…"
