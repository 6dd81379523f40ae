"""Claims on several shards as one claim: batches form a vector, and windows one window.

Sinks store a vector in one commit, which is final; then each member is acked on its shard. Windows
are stored like a window of one database.
"""

import hashlib
from collections.abc import Mapping

from .errors import InvalidArgument, prefixed
from .models import BatchInfo, Lease, ReadPlan
from .operation import Call
from .read_batch import AckResult, Failures, ReadBatch

# Stands for the incarnation in tables of several shards.
SHARDS = "shards"


class ShardedClaim(ReadBatch):
    """Batches of one consumer on several shards, or windows, which are stored together.

    The id of a vector, and its epoch, is a hash of its members and the epochs of their claims, so
    no other attempt has it. Windows keep their id, and their epoch is the highest of the shards'
    epochs. Each of these is higher than in all earlier attempts, so the highest is too, unless one
    shard was removed. Overlapping attempts may have the same epoch: sinks do not let the second one
    publish.

    Args:
        shards: the batches or windows, by the name of the shard; at least one.
    """

    # Each shard has its own keeper.
    keeper = None
    incarnation = SHARDS

    def __init__(self, shards: Mapping[str, ReadBatch]) -> None:
        self.shards = dict(shards)
        claims = list(self.shards.values())
        first, epochs = claims[0], [each.lease.epoch for each in claims]
        named = sorted(f"{each.record}/{each.lease.epoch}" for each in claims)
        # The id fits in a bigint.
        digest = int.from_bytes(hashlib.sha256("\n".join(named).encode()).digest()[:8]) >> 1
        self.is_window = first.is_window
        self.is_final = not self.is_window
        lease = Lease(
            batch_id=first.batch_id if self.is_window else digest,
            owner=first.lease.owner,
            epoch=max(epochs) if self.is_window else digest,
            until=min(each.lease.until for each in claims),
            prev_tick_id=0,
            tick_id=0,
        )
        super().__init__(None, first.queue, first.consumer, lease)
        self._digest = digest

    @property
    def version(self) -> str:
        """A text that is unique to the attempt."""
        return str(self._digest)

    @property
    def requested(self) -> AckResult:
        """How many events of all shards were passed to `nack` and `dead_letter`."""
        each = [claim.requested for claim in self.shards.values()]
        return AckResult(sum(x.nacked for x in each), sum(x.dead_lettered for x in each))

    def run_checks(self) -> None:
        """Runs the checks of all shards."""
        for shard, claim in self.shards.items():
            with prefixed(f"shard {shard}"):
                claim.run_checks()

    def renew(self) -> None:
        """Extends the leases of all shards.

        Raises:
            LeaseLost, BatchNotOpen: if the extension of one lease is refused.
        """
        for claim in self.shards.values():
            claim.renew()

    def info(self) -> BatchInfo:
        """Returns the times of a window, with the ticks of its first shard. Refuses a vector."""
        if self.is_final:
            raise self._by_shard()
        return next(iter(self.shards.values())).info()

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Raises `InvalidArgument`: each shard has its own plan."""
        raise self._by_shard()

    def history_call(self, max_events: int) -> None:
        """Returns None: each shard has its own history."""

    def _note(self, failures: Failures) -> None:
        raise self._by_shard()

    @staticmethod
    def _by_shard() -> InvalidArgument:
        return InvalidArgument(
            "events of several shards have the same ids",
            "Use the claims of the shards, or the methods of the batch that the function gets.",
        )
