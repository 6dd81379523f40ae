"""What sinks need to know about an attempt at a batch, and users do not."""

from dataclasses import dataclass, field
from datetime import UTC

from ..client.read_batch import ReadBatch
from .address import DatabaseAddress
from .written import Written


@dataclass(frozen=True)
class BatchAttempt:
    """One attempt at a batch.

    Attributes:
        claim: the claim.
        url: the database, as the driver reaches it. It may contain a password.
        address: how executors find the database.
        written: the sinks that have this attempt's results.
    """

    claim: ReadBatch
    url: str = field(repr=False)
    address: DatabaseAddress
    written: Written

    @property
    def identity(self) -> str:
        """A name of the batch that no other batch has, not even one of a new installation."""
        claim = self.claim
        made_at = claim.info().end.astimezone(UTC)
        return f"{claim.queue}/{claim.consumer}/{claim.batch_id}@{made_at.isoformat()}"
