"""Publishes the output of a batch in one atomic step that a stale attempt cannot take.

All sinks that store files or tables outside the queue's database do this. An attempt at a batch
has a lease with an epoch. Each later claim of the batch has a higher epoch, and only the highest
one can ack. An attempt first stores its files under names that no other attempt uses, where no
reader looks. Then `publish` takes these steps:

1. It reads the newest state of the table, and which attempt at this batch is published in it.
2. The database renews the lease. It refuses if a later claim was committed.
3. In one atomic step, the files are published in place of what is published of the batch. The step
   fails if the state that was read in step 1 is not the newest one any more. Then all steps are
   repeated.

A stale attempt S cannot change what a later attempt L published. The last renewal of S succeeded,
so it came before L's claim, and S had read the state before that. L published after its claim. So
if S takes step 3 after L published, the state that S read is not the newest one, and the step
fails. If S takes step 3 before that, then L reads what S published, or L's own step 3 fails and is
repeated: in both cases L replaces it.

A window of time (`client/window.py`) is a batch without a lease. Step 2 refuses nobody then, but
each attempt has a higher epoch than those before it. After the step of S failed, S reads what L
published, and is refused because of its lower epoch.

A window over several shards has the highest epoch of its members. This is lower than that of an
earlier attempt only if a shard was removed meanwhile, and then it is refused.

A vector (`client/vector.py`) has a lease on each member, and its publication is final, because
after the first ack it cannot be computed again. The table records which vector has which batch.
Step 2 renews all leases, and an attempt is refused if step 1 finds one of its members published by
another one. Take a stale attempt S and a later one L that claims a member of S. If S takes step 3
before L does, L's step fails, or L has read what S published: L is refused, and whoever claims that
member next acks it, with the failures that S has recorded. If L is first, the step of S fails.

So nothing depends on a process noticing in time that it is stale, and files that were never
published are never read.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...client import InvalidArgument, installation
from ...client.read_batch import ReadBatch
from ...client.sharded import ShardedClaim
from ...client.vector import Vector

State = TypeVar("State")

# In place of the incarnation, in tables of several shards.
SHARDS = "shards"


@dataclass(frozen=True)
class BatchIdentity:
    """The name of a batch that no other batch has."""

    incarnation: str
    queue: str
    consumer: str
    batch_id: int

    @classmethod
    def of(cls, claim: ReadBatch) -> "BatchIdentity":
        """Returns the identity of a claimed batch, or of a claim of several shards."""
        if isinstance(claim, ShardedClaim):
            return cls(SHARDS, claim.queue, claim.consumer, claim.batch_id)
        incarnation = str(claim.session.run(installation.incarnation()))
        return cls(incarnation, claim.queue, claim.consumer, claim.batch_id)

    @property
    def record(self) -> str:
        """The name as tables record it."""
        return f"{self.incarnation}/{self.queue}/{self.consumer}/{self.batch_id}"

    def __str__(self) -> str:
        return f"batch {self.batch_id} of {self.queue}/{self.consumer}"


@dataclass(frozen=True)
class WriteAttempt:
    """An attempt at a batch: the epoch of its claim, and a random id of its write."""

    epoch: int
    id: str


class Output(Protocol[State]):
    """What an attempt has stored and can publish."""

    attempt: WriteAttempt

    def read(self) -> State:
        """Returns the newest state of the table."""

    def published(self, state: State) -> WriteAttempt | None:
        """Returns the attempt at this batch whose output is published in a state."""

    def replace(self, state: State) -> bool:
        """Publishes the output in place of what `state` has of the batch, in one atomic step.

        Returns False if `state` is not the newest any more. Nothing is published then.
        """


def publish(claim: ReadBatch, output: Output[State]) -> None:
    """Publishes the output of an attempt, in place of what earlier attempts at the batch published.

    Raises:
        MalformedPayload: if the batch has more malformed events than may be set aside. Nothing is
            published.
        LeaseLost, BatchNotOpen, InvalidArgument: as for `check_claim`. Nothing is published.
    """
    claim.run_checks()
    while True:
        state = output.read()
        earlier = output.published(state)
        if earlier == output.attempt:
            # The step succeeded, but its answer was lost.
            return
        check_claim(claim, earlier)
        if output.replace(state):
            return


def stored_meanwhile(claim: Vector) -> InvalidArgument:
    """Returns the error for a vector of which another run has stored a member."""
    return InvalidArgument(
        f"another run has stored a batch of {', '.join(claim.members)} meanwhile",
        "Nothing to do: later runs ack that batch, and store the others.",
    )


def check_claim(claim: ReadBatch, earlier: WriteAttempt | None) -> None:
    """Refuses a claim that is stale, or that does not come after what is published.

    Sinks also call this before Spark works, so that a write that would be refused fails at once.

    Args:
        claim: the claim.
        earlier: the attempt at its batch that was read as published, if any.

    Raises:
        LeaseLost: if another owner took the batch over.
        BatchNotOpen: if the batch was acked meanwhile.
        InvalidArgument: if `earlier` has the epoch of this claim or a higher one; or, for a vector,
            if one of its members is published.
    """
    claim.renew()
    if isinstance(claim, Vector) and earlier is not None:
        raise stored_meanwhile(claim)
    if earlier is not None and earlier.epoch >= claim.lease.epoch:
        raise InvalidArgument(
            f"epoch {earlier.epoch} of batch {claim.batch_id} is published, and its newest claim "
            f"has epoch {claim.lease.epoch}",
            "Either this claim wrote the batch before: unite the DataFrames, and write them once. "
            "Or it is a window that a later run stored. Or the database went back in time, and "
            "this is another batch: write to another location.",
        )
