"""What sinks take in place of a batch of one database: batches, or windows, of several shards."""

import hashlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from . import installation
from .errors import InvalidArgument, prefixed
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import AckResult, Failures, ReadBatch

Member = TypeVar("Member", bound=ReadBatch)


class ShardedClaim(ReadBatch, Generic[Member]):
    """Batches of several shards, or their windows, which are stored together.

    Args:
        members: the batches or windows, by the name of the shard; at least one.

    Attributes:
        members: the same.
        incarnations: those of the shards' databases.
        digest: a hash of the members and of the epochs of their claims, so that no other attempt
            has it.
    """

    # Each member has its own.
    keeper = None

    def __init__(self, members: Mapping[str, Member]) -> None:
        self.members = dict(members)
        self.incarnations = {
            shard: str(batch.session.run(installation.incarnation()))
            for shard, batch in self.members.items()
        }
        first = next(iter(self.members.values()))
        named = sorted(
            f"{self.record_of(shard)}/{batch.lease.epoch}" for shard, batch in self.members.items()
        )
        # It fits in a bigint.
        self.digest = int.from_bytes(hashlib.sha256("\n".join(named).encode()).digest()[:8]) >> 1
        lease = Lease(
            batch_id=self.digest,
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

    @property
    def requested(self) -> AckResult:
        """How many events of all members were passed to `nack` and `dead_letter`."""
        each = [batch.requested for batch in self.members.values()]
        return AckResult(sum(x.nacked for x in each), sum(x.dead_lettered for x in each))

    def run_checks(self) -> None:
        """Runs the checks of all members."""
        for shard, batch in self.members.items():
            with prefixed(f"shard {shard}"):
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
            "events of several shards have the same ids",
            "Use the members, or the methods of the batch that the function gets.",
        )
