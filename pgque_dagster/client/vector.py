"""A vector: at most one claimed batch of each shard of a queue.

A sink stores its members by one commit, which is final; then each one is acked on its shard.
"""

import json
from collections.abc import Mapping
from datetime import timedelta

from .batch import Batch
from .sharded import ShardedClaim


class Vector(ShardedClaim[Batch]):
    """The claimed batches of one consumer on several shards, which sinks take in place of a batch.

    Its `batch_id` is its `digest`.

    Attributes:
        is_stored: whether a sink has stored it.
    """

    def __init__(self, members: Mapping[str, Batch]) -> None:
        super().__init__(members)
        self.is_stored = False

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
