"""Batches or windows of several shards as one DataFrame, which Spark reads in parallel."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..client import InvalidArgument
from ..client.errors import prefixed
from ..client.models import ReadPlan
from ..client.sharded_claim import ShardedClaim
from .batch import SparkBatch

SHARD = "shard"


class ShardedBatch(SparkBatch):
    """The batches of a run of an asset with `databases`, read like one `SparkBatch`.

    All DataFrames begin with the column `shard`, the name of the database. Event ids are unique
    within a shard. Options such as `max_malformed` are for the batch of each shard.

    Args:
        claim: the claims, or the windows.
        members: the batch of each claim.

    Attributes:
        members: the batches, by the names of their shards.
    """

    def __init__(self, claim: ShardedClaim, members: Mapping[str, SparkBatch]) -> None:
        self.spark = next(iter(members.values())).spark
        self._batch = claim
        self.members = members

    @property
    def plan(self) -> ReadPlan:
        """The sizes and times of all batches together, without slices."""
        plans = [member.plan for member in self.members.values()]
        return ReadPlan(
            events=sum(each.events for each in plans),
            payload_bytes=sum(each.payload_bytes for each in plans),
            bytes=sum(each.bytes for each in plans),
            oldest=min((each.oldest for each in plans if each.oldest), default=None),
            newest=max((each.newest for each in plans if each.newest), default=None),
        )

    def events(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the events of all shards, as `SparkBatch.events` does."""
        return self._united(lambda member: member.events(columns))

    def payload(self, schema: Any, **options: Any) -> DataFrame:
        """Returns the payloads of all shards, as `SparkBatch.payload` does."""
        return self._united(lambda member: member.payload(schema, **options))

    def changes(self, schema: Any, **options: Any) -> DataFrame:
        """Returns the changes of all shards, as `SparkBatch.changes` does."""
        return self._united(lambda member: member.changes(schema, **options))

    def nack(self, events: Any, **options: Any) -> None:
        """Schedules events for another delivery, as `SparkBatch.nack` does.

        They are a DataFrame with the columns shard and ev_id, which is read once for each shard.
        """
        for shard, member in self.members.items():
            of_shard = _of(shard, events)
            with prefixed(f"shard {shard}"):
                member.nack(of_shard, **options)

    def dead_letter(self, events: Any, **options: Any) -> None:
        """Makes events dead letters, as `SparkBatch.dead_letter` does, given as for `nack`."""
        for shard, member in self.members.items():
            of_shard = _of(shard, events)
            with prefixed(f"shard {shard}"):
                member.dead_letter(of_shard, **options)

    def close(self) -> None:
        """Frees what the batches persisted."""
        for member in self.members.values():
            member.close()

    def _united(self, read: Callable[[SparkBatch], DataFrame]) -> DataFrame:
        frames = []
        for shard, member in self.members.items():
            member.settles_late = self.settles_late
            with prefixed(f"shard {shard}"):
                frame = read(member)
            if SHARD in map(str.lower, frame.columns):
                raise InvalidArgument(
                    f"a field has the name {SHARD}, which is the name of the database column",
                    "Leave it out of the schema, or read it from ev_data with Spark.",
                )
            frames.append(frame.select(f.lit(shard).alias(SHARD), "*"))
        return reduce(DataFrame.union, frames)


def _of(shard: str, events: Any) -> DataFrame:
    if not isinstance(events, DataFrame) or SHARD not in events.columns:
        raise InvalidArgument(
            f"events of several shards are identified by the columns {SHARD} and ev_id",
            f"Pass a DataFrame with both: batch.payload(schema, keep=['ev_id']) has {SHARD}, too.",
        )
    return events.where(f.col(SHARD) == shard)
