"""Publishes the output of a claim in one atomic step that fails for a stale attempt.

All sinks that store files or tables outside the queue's database do this. A claim is a batch, a
window of time, or several of them, one of each shard (`client/sharded_claim.py`). A table records
which attempt has stored which member of a claim, with its rows. An attempt first stores its files
under names that no other attempt uses, where no reader looks. Then `publish` takes these steps:

1. It reads the newest state of the table, and which attempts are recorded in it for its members.
2. The databases renew the leases of all members. One refuses if a later claim was committed. Then
   the attempt is refused if a recorded one has a higher epoch, or its own, or if it is final.
3. In one atomic step, the files are published, with the record, in place of what the recorded
   attempt published. The step fails if the state that was read in step 1 is not the newest one any
   more. Then all steps are repeated.

Take a stale attempt S and a later attempt L with a member in common.

- S cannot change what L published. The last renewal of S succeeded, so it came before L's claim,
  and S had read the state before that. L published after its claim. So if S takes step 3 after L
  published, the state that S read is not the newest one, and the step fails.
- If S takes step 3 before that, L reads what S published, or L's own step 3 fails and is repeated.
  Then L replaces it, if all of it is of L's batch.
- What a vector published is final, because after the first ack it cannot be computed again. So L is
  refused, and the next run that claims that member acks it, with the failures that S has recorded.
- A window has no lease that step 2 could check, but each attempt has a higher epoch than all
  before it. After S's step fails, S reads what L published and is refused. A window
  over shards has a lower epoch than an earlier attempt only if a shard was removed in between, and
  then it is refused.

So nothing depends on a process noticing in time that it is stale, and files that were never
published are never read.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...client import InvalidArgument
from ...client.read_batch import ReadBatch

State = TypeVar("State")


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
        """Returns the attempt at this claim, or one of its members, that a state has published."""

    def replace(self, state: State) -> bool:
        """Publishes the output, replacing what `state` has of the batch, in one atomic step.

        Returns False if `state` is no longer the newest. Then nothing is published.
        """


def publish(claim: ReadBatch, output: Output[State]) -> None:
    """Publishes an attempt's output, replacing what earlier attempts at the batch published.

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


def stored_meanwhile(claim: ReadBatch) -> InvalidArgument:
    """Returns the error for a vector if another run has stored one of its members."""
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
        BatchNotOpen: if the batch was acked in between.
        InvalidArgument: if `earlier` has the epoch of this claim or a higher one; or, for a vector,
            if one of its members is published.
    """
    claim.renew()
    if claim.is_final and earlier is not None:
        raise stored_meanwhile(claim)
    if earlier is not None and earlier.epoch >= claim.lease.epoch:
        raise InvalidArgument(
            f"epoch {earlier.epoch} of batch {claim.batch_id} is published, and its newest claim "
            f"has epoch {claim.lease.epoch}",
            "Either this claim wrote the batch before: unite the DataFrames, and write them once. "
            "Or it is a window that a later run stored. Or the database went back in time, and "
            "this is another batch: write to another location.",
        )
