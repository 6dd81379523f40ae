"""A claimed batch as DataFrames.

The claim collects the events that failed, and its ack writes them. So the results of a batch
commit together with its retries and dead letters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from ..client.batch import Batch, read_plan
from ..client.errors import InvalidArgument
from ..client.models import ReadPlan
from ..client.read_batch import ReadBatch
from . import failed_events
from .address import DatabaseAddress
from .cluster.session import check_open
from .options import DEFAULT_SLICES
from .payload import parsing
from .payload.changes import ChangeFormat, MissingColumns
from .payload.malformed import DEFAULT_MAX_MALFORMED, MalformedEvents, OnMalformed, check_options
from .payload.payloads import PayloadFormat
from .payload.slices import ParsedSlices
from .reading import arrow
from .written import Written

# Smaller batches are read faster on the driver: docs/decisions/0003-arrow-over-adbc.md.
DRIVER_SIDE_EVENTS = 20_000
DRIVER_SIDE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class BatchAttempt:
    """The internals of an attempt at a batch, for sinks.

    Attributes:
        url: the database URL for the driver. It may contain a password.
        written: the sinks that already have this attempt's results.
    """

    claim: ReadBatch
    url: str = field(repr=False)
    address: DatabaseAddress
    written: Written

    @property
    def identity(self) -> str:
        """A unique name of the batch, even across installations."""
        claim = self.claim
        made_at = claim.info().end.astimezone(UTC)
        return f"{claim.queue}/{claim.consumer}/{claim.batch_id}@{made_at.isoformat()}"


class SparkBatch:
    """One claimed batch, for Spark.

    Args:
        spark: the session to make DataFrames in.
        batch: the claim.
        url: the database URL for the driver.
        slices: the maximum number of partitions of a large batch.
        address: how executors find the database; None for the same URL.

    Raises:
        InvalidArgument: if the session was stopped, or is a Connect session that would show the
            password in the address.
    """

    # Whether malformed events are left to the check before publishing. Only a step sets this.
    settles_late = False
    # The batches that it consists of, by the names of their shards.
    members: "Mapping[str, SparkBatch]" = MappingProxyType({})

    def __init__(
        self,
        spark: SparkSession,
        batch: ReadBatch,
        url: str,
        *,
        slices: int = DEFAULT_SLICES,
        address: DatabaseAddress | None = None,
    ) -> None:
        check_open(spark)
        self.spark = spark
        self._batch = batch
        address = address or DatabaseAddress(url)
        address.check_shown()
        self._attempt = BatchAttempt(batch, url, address, Written(f"batch {batch.batch_id}"))
        self._slices = slices
        self._parsed: list[ParsedSlices] = []

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
        """The batch's id. Every attempt at the same events has the same id."""
        return self._batch.batch_id

    @property
    def claim(self) -> ReadBatch:
        """The claim, a `Batch`; or the window."""
        return self._batch

    @property
    def event_count(self) -> int:
        """How many events the batch has."""
        return self.plan.events

    @property
    def is_small(self) -> bool:
        """Whether the driver itself reads the batch, because it has few events."""
        plan = self.plan
        return plan.events <= DRIVER_SIDE_EVENTS and plan.bytes <= DRIVER_SIDE_BYTES

    @cached_property
    def plan(self) -> ReadPlan:
        """The plan for reading the batch, with its sizes and times."""
        return read_plan(self._batch, self._slices)

    @cached_property
    def _malformed(self) -> MalformedEvents:
        return MalformedEvents(self.spark, self._batch, self.event_count)

    def events(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the batch's events, in no particular order.

        Args:
            columns: event columns to read; None for all. Other columns are not fetched.

        Returns:
            A DataFrame with the chosen columns of ev_id bigint, ev_time timestamp, ev_txid bigint,
            ev_retry int, and the strings ev_type, ev_data, ev_extra1 to ev_extra4.

        Raises:
            InvalidArgument: if events have no such column.
        """
        wanted = arrow.check_columns(columns)
        if self.is_small:
            schema = arrow.spark_schema(wanted)
            return self.spark.createDataFrame(self._read_here(wanted), schema=schema)
        address = self._attempt.address
        return arrow.read_slices(self.spark, address, self.plan.slices, wanted)

    def payload(
        self,
        schema: parsing.Schema,
        *,
        keep: Sequence[str] = (),
        on_malformed: OnMalformed = "dead_letter",
        max_malformed: float = DEFAULT_MAX_MALFORMED,
    ) -> DataFrame:
        """Returns the JSON payloads as columns, without payloads that do not fit the schema.

        A payload is malformed if it is not a JSON object, if a value cannot be read exactly as its
        field's type, or if a field declared NOT NULL is missing or null, at any depth:
        docs/payloads.md. The reason is stored with each malformed event. If too many events are
        malformed, the schema is probably wrong: the call raises, and no event is set aside.

        Args:
            schema: fields to read from the payload: DDL, or a StructType.
            keep: event columns to put before the fields.
            on_malformed: `dead_letter` makes malformed events dead letters with the ack; `fail`
                raises; `keep` returns them with null in all fields.
            max_malformed: the share of the batch's events that `dead_letter` may set aside. If more
                are malformed, and at least 5, the call raises. If all are and they are fewer, it
                raises if the consumer has finished no well-formed event before, or if they are
                too many together with its last 45 events. All calls on a batch count together, and
                each event counts once. 1.0 allows all, and such a call does not count for others.
                `fail` and `keep` ignore it.

        Returns:
            A DataFrame of the `keep` columns and the schema's fields.

        Raises:
            MalformedPayload: under `fail`, or if too many events are malformed; it names the
                first events. The check before publishing may raise it instead: docs/assets.md.
            InvalidArgument: if the schema or a column cannot be used, or `max_malformed` is not a
                number from 0 to 1.
        """
        check_options(on_malformed, max_malformed)
        form = PayloadFormat(parsing.parse_schema(self.spark, schema))
        return self._settled(form, keep, on_malformed, max_malformed)

    def changes(
        self,
        schema: parsing.Schema,
        *,
        key: Sequence[str],
        keep: Sequence[str] = (),
        missing_columns: MissingColumns = "malformed",
        on_malformed: OnMalformed = "dead_letter",
        max_malformed: float = DEFAULT_MAX_MALFORMED,
    ) -> DataFrame:
        """Returns the changes of a captured table, one per row.

        Values are read exactly or not at all: docs/capture.md. Events are in no particular
        order; keep ev_id to find the last change of a row.

        Args:
            schema: the table's columns to read, as for `payload`.
            key: the columns of the schema that identify a row: the table's primary key.
            keep: event columns to put before the others.
            missing_columns: `malformed` makes an insert or update malformed if it lacks a column
                of the schema, such as after the column was renamed. `null` reads null instead,
                unless the column is part of the key or NOT NULL.
            on_malformed: what happens to events that cannot be read, as for `payload`.
            max_malformed: as for `payload`.

        Returns:
            A DataFrame of the `keep` columns, operation (insert, update, delete or truncate), table
            (with its schema), and the structs key and row. An insert and an update have the new
            row, a delete has the old row, and a truncate has neither key nor row.

        Raises:
            MalformedPayload: as for `payload`.
            InvalidArgument: if the schema, the key, a column or `max_malformed` cannot be used.
        """
        check_options(on_malformed, max_malformed)
        form = ChangeFormat(parsing.parse_schema(self.spark, schema), key, missing_columns)
        return self._settled(form, keep, on_malformed, max_malformed)

    def nack(
        self,
        events: DataFrame | Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Column | str | None = None,
    ) -> None:
        """Schedules events for another delivery. Takes effect with the ack.

        The ids are computed now and kept until the ack, with eight bytes each. If an id is not in
        this batch, the ack raises `EventNotInBatch` and changes nothing. An event also passed to
        `dead_letter` only becomes a dead letter.

        Args:
            events: a DataFrame with the column ev_id, or ids. Duplicates count once.
            retry_after: how long to wait before the next delivery.
            reason: stored with the dead letter once the retries are used up; a text, or a column
                of the DataFrame.

        Raises:
            InvalidArgument: if the DataFrame has no column of ids, or nulls in it.
        """
        msg_ids, why = failed_events.collect(events, reason)
        self._batch.nack(msg_ids, retry_after=retry_after, reason=why)

    def dead_letter(
        self, events: DataFrame | Iterable[int], *, reason: Column | str | None
    ) -> None:
        """Makes events dead letters. Takes effect with the ack, which checks ids as for `nack`.

        Args:
            events: a DataFrame with the column ev_id, or ids. Duplicates count once.
            reason: stored with the dead letters; a text, or a column of the DataFrame.

        Raises:
            InvalidArgument: if the DataFrame has no column of ids, or nulls in it.
        """
        msg_ids, why = failed_events.collect(events, reason)
        self._batch.dead_letter(msg_ids, reason=why)

    def before_ack(self, step: Callable[[psycopg.Connection[tuple[Any, ...]]], object]) -> None:
        """Runs a function in the ack's transaction, so that both commit or neither does.

        Args:
            step: receives the connection. If it raises, the batch is not acked.

        Raises:
            InvalidArgument: if the events come from a window, from rows, or from several shards.
        """
        if not isinstance(self._batch, Batch):
            raise InvalidArgument(
                "only a claimed batch is acked, and only by its own database: nothing runs before "
                "the ack of a window, of rows, or of the batches of several shards",
                "Store its rows directly.",
            )
        self._batch.before_ack(step)

    def close(self) -> None:
        """Frees what `payload` and `changes` persisted, and the reports of tasks."""
        while self._parsed:
            self._parsed.pop().forget()

    def _read_here(self, columns: Sequence[str]) -> pa.Table:
        return arrow.read_table(self._attempt.url, self.plan.slices, columns)

    def _settled(
        self,
        form: parsing.Format,
        keep: Sequence[str],
        policy: OnMalformed,
        max_malformed: float,
    ) -> DataFrame:
        """Parses the events, sets malformed ones aside, and returns the others."""
        kept = arrow.check_columns(keep) if keep else ()
        parsing.check_clash(form, kept)
        how = parsing.EventParsing(form, kept)
        if self.is_small:
            parsed = how.table(self._read_here(how.needed))
            if policy == "keep":
                rows = parsing.without_reasons(parsed)
            else:
                explained = pa.Table.from_batches([parsing.explained(parsed)])
                self._malformed.settle(explained, policy, max_malformed)
                rows = parsing.fitting(parsed)
            table = pa.Table.from_batches([rows])
            return how.rows(self.spark.createDataFrame(table, schema=how.schema()))
        slices = ParsedSlices(self.spark, self._attempt.address, self.plan.slices, how)
        if policy == "keep":
            return slices.all()

        def settle() -> None:
            with slices.malformed() as explained:
                self._malformed.settle(explained, policy, max_malformed)

        self._parsed.append(slices)
        # Spark Connect has no accumulators for the reports of tasks.
        if self.settles_late and not is_remote():
            self._batch.before_publishing(settle)
            return slices.fitting()
        fitting = slices.persisted()
        settle()
        return fitting


def attempt_of(batch: SparkBatch) -> BatchAttempt:
    """Returns the internals of an attempt at a batch, for sinks.

    Raises:
        InvalidArgument: if the batch is made of several shards.
    """
    if batch.claim.shards:
        raise InvalidArgument(
            "this sink does not store the events of several shards",
            "Return the DataFrame, and let an IO manager store it (in YAML, a sink).",
        )
    return batch._attempt  # noqa: SLF001 -- sinks are its friends, users are not
