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
so it came before L's claim was committed, and S had read the state before that. L published after
its claim. So if S takes step 3 after L published, the state that S read is not the newest one, and
the step fails. If S takes step 3 before L published, then L reads what S published, or L's own
step 3 fails and is repeated: in both cases L replaces it.

A window of time (`client/window.py`) is a batch without a lease. Step 2 refuses nobody then, but
each attempt has a higher epoch than those before it. After the step of S failed, S reads what L
published, and is refused because of its lower epoch.

So nothing depends on a process noticing in time that it is stale, and files that were never
published are never read. An attempt that dies before step 3 has published nothing; the next attempt
at the batch publishes its own output.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...client import InvalidArgument, installation
from ...client.read_batch import ReadBatch

State = TypeVar("State")


@dataclass(frozen=True)
class BatchIdentity:
    """The name of a batch that no other batch has."""

    incarnation: str
    queue: str
    consumer: str
    batch_id: int

    @classmethod
    def of(cls, claim: ReadBatch) -> "BatchIdentity":
        """Returns the identity of a claimed batch."""
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
        ...

    def published(self, state: State) -> WriteAttempt | None:
        """Returns the attempt at this batch whose output is published in a state."""
        ...

    def replace(self, state: State) -> bool:
        """Publishes the output in place of what `state` has of the batch, in one atomic step.

        Returns:
            False if `state` is not the newest state any more. Nothing is published then.
        """
        ...


def publish(claim: ReadBatch, output: Output[State]) -> None:
    """Publishes the output of an attempt, in place of what earlier attempts at the batch published.

    Raises:
        MalformedPayload: if the batch has more malformed events than may be set aside. Nothing is
            published.
        LeaseLost: if another owner took the batch over. Nothing is published.
        BatchNotOpen: if the batch was acked meanwhile. Nothing is published.
        InvalidArgument: if something is published under the epoch of this claim or a higher one.
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


def check_claim(claim: ReadBatch, earlier: WriteAttempt | None) -> None:
    """Refuses a claim that is stale, or that does not come after what is published.

    Sinks also call this before Spark works, so that a write that would be refused fails at once.

    Args:
        claim: the claim.
        earlier: the attempt at its batch that was read as published, if any.

    Raises:
        LeaseLost: if another owner took the batch over.
        BatchNotOpen: if the batch was acked meanwhile.
        InvalidArgument: if `earlier` has the epoch of this claim or a higher one.
    """
    claim.renew()
    if earlier is not None and earlier.epoch >= claim.lease.epoch:
        raise InvalidArgument(
            f"epoch {earlier.epoch} of batch {claim.batch_id} is published, and its newest claim "
            f"has epoch {claim.lease.epoch}",
            "Either this claim wrote the batch before: unite the DataFrames, and write them once. "
            "Or it is a window that a later run stored. Or the database went back in time, and "
            "this is another batch: write to another location.",
        )
