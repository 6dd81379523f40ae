"""The identity of a run for a batch, and the Dagster tags that carry it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from ..client.holder import Holder
from .keys import (
    ATTEMPT,
    BATCH_ID,
    CONSUMER,
    EPOCH,
    INCARNATION,
    QUEUE,
    REQUESTED_AT,
    SLOT,
    of_shard,
)

# The tags that a run for several shards' batches has for each of them.
_OF_BATCH = (BATCH_ID, INCARNATION, ATTEMPT, EPOCH, REQUESTED_AT)


@dataclass(frozen=True)
class BatchRun:
    """The batch and the attempt that a run is for.

    Attributes:
        batch_id: the batch's id. It repeats in other incarnations of a database.
        attempt: counts the runs of the batch from 1; 0 if the tag was lost.
        epoch: the consumer's epoch when the run was requested; None if the tag was lost.
        requested_at: by the database's clock; None if the tag was lost.
        shard: the batch's shard, if the run is for several databases; otherwise None.
    """

    holder: Holder
    batch_id: int
    incarnation: str
    attempt: int = 0
    epoch: int | None = None
    requested_at: datetime | None = None
    shard: str | None = None

    @classmethod
    def read(
        cls, tags: Mapping[str, str], holder: Holder | None = None, shard: str | None = None
    ) -> Self | None:
        """Returns what `tags` returned as an object; None if the run is for no batch.

        Args:
            tags: the run's tags.
            holder: the consumer for which a step works, instead of the one in the tags.
            shard: the shard whose batch to read; None for a run for one database.
        """
        tags = {**tags, **{key: tags.get(of_shard(key, shard), "") for key in _OF_BATCH}}
        batch_id = _number(tags[BATCH_ID])
        if batch_id is None:
            return None
        queue = holder.queue if holder else tags.get(QUEUE, "")
        consumer = holder.consumer if holder else tags.get(CONSUMER, "")
        return cls(
            Holder(queue, consumer, slot=tags.get(SLOT)),
            batch_id,
            tags[INCARNATION],
            _number(tags[ATTEMPT]) or 0,
            _number(tags[EPOCH]),
            _time(tags[REQUESTED_AT]),
            shard,
        )

    @property
    def key(self) -> str:
        """The run key, with which Dagster starts one run for each attempt."""
        holder = self.holder
        return f"{self.incarnation}:{holder.queue}:{holder.name}:{self.batch_id}:{self.attempt}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the run."""
        tags = {
            QUEUE: self.holder.queue,
            CONSUMER: self.holder.consumer,
            SLOT: self.holder.slot,
            BATCH_ID: str(self.batch_id),
            INCARNATION: self.incarnation,
            ATTEMPT: str(self.attempt),
            EPOCH: None if self.epoch is None else str(self.epoch),
            REQUESTED_AT: None if self.requested_at is None else self.requested_at.isoformat(),
        }
        return {
            of_shard(key, self.shard if key in _OF_BATCH else None): value
            for key, value in tags.items()
            if value is not None
        }


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return None
