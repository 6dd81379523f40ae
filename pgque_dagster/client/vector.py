"""A vector: at most one claimed batch of each shard of a queue.

A sink stores its members by one commit, which is final; then each one is acked on its shard.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta

from . import installation
from .batch import Batch
from .errors import InvalidArgument
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import AckResult, Failures, ReadBatch


class Vector(ReadBatch):
    """The claimed batches of one consumer on several shards, which sinks take in place of a batch.

    Its `batch_id` is a hash of the members and of the epochs of their claims, so that no other
    attempt has it.

    Args:
        members: the claims, by the name of the shard; at least one.

    Attributes:
        members: the same.
        incarnations: those of the shards' databases.
        is_stored: whether a sink has stored it.
    """

    # Each member has its own.
    keeper = None

    def __init__(self, members: Mapping[str, Batch]) -> None:
        self.members = dict(members)
        self.incarnations = {
            shard: str(batch.session.run(installation.incarnation()))
            for shard, batch in self.members.items()
        }
        self.is_stored = False
        first = next(iter(self.members.values()))
        named = sorted(
            f"{self.record_of(shard)}/{batch.lease.epoch}" for shard, batch in self.members.items()
        )
        # It fits in a bigint.
        number = int.from_bytes(hashlib.sha256("\n".join(named).encode()).digest()[:8]) >> 1
        lease = Lease(
            batch_id=number,
            owner=first.lease.owner,
            epoch=0,
            until=min(batch.lease.until for batch in self.members.values()),
            prev_tick_id=0,
            tick_id=0,
        )
        super().__init__(None, first.queue, first.consumer, lease)

    def consumer_of(self, shard: str) -> str:
        """Returns the name of a member's consumer that no consumer of another database has."""
        batch = self.members[shard]
        return f"{self.incarnations[shard]}/{batch.queue}/{batch.consumer}"

    def record_of(self, shard: str) -> str:
        """Returns the name of a member that no other batch has."""
        return f"{self.consumer_of(shard)}/{self.members[shard].batch_id}"

    def dump_failures(self, shard: str) -> str:
        """Returns what was passed to `nack` and `dead_letter` of a member, for `load_failures`."""
        return json.dumps(
            [
                (
                    list(each.msg_ids),
                    list(each.reasons),
                    None if each.retry_after is None else each.retry_after.total_seconds(),
                )
                for each in self.members[shard].failures
            ]
        )

    def load_failures(self, shard: str, dumped: str) -> None:
        """Gives a member the failures that the vector which stored it has recorded, for its ack."""
        batch = self.members[shard]
        for ids, reasons, after in json.loads(dumped):
            if after is None:
                batch.dead_letter(ids, reason=reasons)
            else:
                batch.nack(ids, reason=reasons, retry_after=timedelta(seconds=after))

    @property
    def requested(self) -> AckResult:
        """How many events of all members were passed to `nack` and `dead_letter`."""
        each = [batch.requested for batch in self.members.values()]
        return AckResult(sum(x.nacked for x in each), sum(x.dead_lettered for x in each))

    def run_checks(self) -> None:
        """Runs the checks of all members."""
        for batch in self.members.values():
            batch.run_checks()

    def renew(self) -> None:
        """Extends the leases of all members.

        Raises:
            LeaseLost, BatchNotOpen: if that of one is refused.
        """
        for batch in self.members.values():
            batch.renew()

    def info(self) -> BatchInfo:
        """Raises `InvalidArgument`: each member has its own ticks."""
        raise self._by_member()

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Raises `InvalidArgument`: each member has its own plan."""
        raise self._by_member()

    def history_call(self, max_events: int) -> None:
        """Returns None: each member has its own history."""

    def _note(self, failures: Failures) -> None:
        raise self._by_member()

    @staticmethod
    def _by_member() -> InvalidArgument:
        return InvalidArgument(
            "a vector has events of several shards, with the same ids",
            "Use its members, or the methods of the batch that the function gets.",
        )
