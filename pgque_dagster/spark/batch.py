"""A claimed batch as DataFrames.

Which events failed is kept with the claim and takes effect with its ack, so the results of a batch
and the retries and dead letters it leaves stand or fall together.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ..client import Batch
from ..client.errors import InvalidArgument, MalformedPayload
from ..client.models import ReadPlan
from . import payload, source, wire

OnMalformed = Literal["dead_letter", "retry", "fail", "keep"]

# Up to here reading on the driver was faster than starting a Spark read, when measured:
# docs/decisions/0003-arrow-over-adbc.md.
DRIVER_SIDE_EVENTS = 20_000


class SparkBatch:
    """One claimed batch, for Spark.

    Args:
        spark: the session to make DataFrames in.
        batch: the claim.
        url: the database, as executors reach it.
        slices: how many partitions a large batch is read in, at the most.
    """

    def __init__(
        self, spark: SparkSession, batch: Batch, url: str, *, slices: int = source.DEFAULT_SLICES
    ) -> None:
        self.spark = spark
        self._batch = batch
        self._url = url
        self._slices = slices
        self._persisted: list[DataFrame] = []

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._batch.queue

    @property
    def consumer(self) -> str:
        """The consumer's name."""
        return self._batch.consumer

    @property
    def batch_id(self) -> int:
        """The batch's id: the same for every attempt at the same events."""
        return self._batch.batch_id

    @property
    def event_count(self) -> int:
        """How many events the batch has."""
        return self._plan.events

    @cached_property
    def _plan(self) -> ReadPlan:
        return self._batch.read_plan(self._slices)

    def events(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the batch's events, in no particular order.

        Args:
            columns: event columns to read; all for None. What is left out does not travel.

        Returns:
            A DataFrame of ev_id bigint, ev_time timestamp, ev_txid bigint, ev_retry int, and the
            strings ev_type, ev_data, ev_extra1 to ev_extra4, or those of them asked for.

        Raises:
            InvalidArgument: if events have no such column.
        """
        wanted = wire.check_columns(columns)
        if self.event_count <= DRIVER_SIDE_EVENTS:
            table = wire.read_table(self._url, self._plan.slices, wanted)
            return self.spark.createDataFrame(table, schema=wire.spark_schema(wanted))
        source.register(self.spark)
        return (
            self.spark.read.format("pgque")
            .options(
                url=self._url,
                batch_id=str(self.batch_id),
                columns=",".join(wanted),
                plan=json.dumps(self._plan.slices),
            )
            .load()
        )

    def payload(
        self,
        schema: StructType | str,
        *,
        keep: Sequence[str] = (),
        on_malformed: OnMalformed = "dead_letter",
        retry_after: timedelta = timedelta(minutes=1),
    ) -> DataFrame:
        """Returns the JSON payloads as columns, without those that do not fit the schema.

        A payload is malformed when it is no JSON object, when a value has another type than its
        field, or when a field declared NOT NULL is missing or null.

        Args:
            schema: fields to read from the payload, as StructType or DDL.
            keep: event columns to put before them.
            on_malformed: `dead_letter` gives such events up, `retry` has them delivered again, both
                with the ack; `fail` raises; `keep` returns them with the fields that could be read.
            retry_after: when, for `retry`.

        Returns:
            A DataFrame of the `keep` columns and the schema's fields.

        Raises:
            MalformedPayload: under `fail`, naming the first events concerned.
            InvalidArgument: if the schema or a column cannot be used.
        """
        fields = payload.parse_schema(self.spark, schema)
        kept = wire.check_columns(keep) if keep else ()
        clash = [field.name for field in fields if field.name in kept]
        if clash:
            raise InvalidArgument(
                f"{clash[0]} is both a payload field and an event column to keep",
                "Leave it out of keep, or rename it after payload().",
            )
        read = self.events(list(dict.fromkeys(("ev_id", "ev_data", *kept))))
        parsed = payload.parse(read, fields, keep=("ev_id", *(c for c in kept if c != "ev_id")))
        if self.event_count > DRIVER_SIDE_EVENTS:
            # Read once: for the malformed ones here, and for the caller.
            self._persisted.append(parsed.persist())
        if on_malformed != "keep":
            self._settle_malformed(parsed, fields, on_malformed, retry_after)
            parsed = parsed.where(~parsed[payload.MALFORMED])
        return parsed.select(*kept, *(payload.quoted(field.name) for field in fields))

    def nack(
        self,
        events: DataFrame | Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: str | None = None,
    ) -> None:
        """Has events delivered again later; takes effect with the ack.

        Args:
            events: a DataFrame with the column ev_id, or ids.
            retry_after: when.
            reason: kept with the dead letter once the retries are used up.
        """
        self._batch.nack(_event_ids(events), retry_after=retry_after, reason=reason)

    def dead_letter(self, events: DataFrame | Iterable[int], *, reason: str) -> None:
        """Gives events up; they become dead letters with the ack.

        Args:
            events: a DataFrame with the column ev_id, or ids.
            reason: why, for those who look at the dead letters.
        """
        self._batch.dead_letter(_event_ids(events), reason=reason)

    def close(self) -> None:
        """Frees what `payload` had Spark keep."""
        while self._persisted:
            self._persisted.pop().unpersist()

    def _settle_malformed(
        self, parsed: DataFrame, fields: StructType, policy: OnMalformed, retry_after: timedelta
    ) -> None:
        ids = _event_ids(parsed.where(parsed[payload.MALFORMED]))
        if not ids:
            return
        reason = f"malformed payload: no JSON object of ({payload.to_ddl(fields)})"
        if policy == "dead_letter":
            self._batch.dead_letter(ids, reason=reason)
        elif policy == "retry":
            self._batch.nack(ids, retry_after=retry_after, reason=reason)
        else:
            raise MalformedPayload(
                f"{len(ids)} events of batch {self.batch_id} have a {reason}; "
                f"the first are {sorted(ids)[:5]}",
                "Correct the schema, or pass another on_malformed.",
            )


def _event_ids(events: DataFrame | Iterable[int]) -> list[int]:
    if not isinstance(events, DataFrame):
        return list(events)
    if "ev_id" not in events.columns:
        raise InvalidArgument(
            f"the DataFrame has no column ev_id, only {', '.join(events.columns)}",
            "Keep it: batch.payload(schema, keep=['ev_id']).",
        )
    ids: list[int] = events.select("ev_id").toArrow()["ev_id"].to_pylist()
    return ids
