"""What comparing a replica with its table finds."""

from dataclasses import dataclass
from typing import Any

from ..operation import Call
from ..session import Session

# How many differences are named.
SHOWN = 10
NEXT_COPIES = "the next batch copies the table"
REPLICA_GONE = "the replica is gone, or somebody else changed it"
ALTERED = "the table was altered meanwhile"


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ.

    Attributes:
        kind: `missing` in the replica, `extra` in it, `different`, or `repeated`.
        key: the values of the key.
        here: the rows that the table has for it, as JSON.
        there: those that the replica has.
    """

    kind: str
    key: dict[str, Any]
    here: tuple[str, ...]
    there: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """What comparing a replica with its table found.

    Attributes:
        table: schema and name.
        tick_id: the tick at which they were compared; None if they could not be.
        version: the version of the replica, if it has versions.
        rows: how many rows the table has.
        differences: how many keys differ.
        examples: up to ten of them.
        why_not: why they could not be compared; None if they were.
    """

    table: str
    tick_id: int | None
    version: int | None
    rows: int = 0
    differences: int = 0
    examples: tuple[Difference, ...] = ()
    why_not: str | None = None

    @property
    def problem(self) -> str | None:
        """How the replica differs from its table; None if it does not, or nobody knows."""
        if self.why_not == REPLICA_GONE:
            return REPLICA_GONE
        if self.why_not is not None or not self.differences:
            return None
        shown = "; ".join(f"{each.kind} {each.key}" for each in self.examples)
        return f"{self.differences} of {self.rows} rows differ: {shown}"

    @property
    def is_equal(self) -> bool:
        """Whether the rows are proven to be the same."""
        return self.why_not is None and not self.differences


def last_acked_tick(session: Session, queue: str, consumer: str) -> int:
    """Returns the tick up to which a consumer has acked its batches."""
    return session.run(
        Call(
            "select last_tick from pgque.get_consumer_info(%s, %s)",
            (queue, consumer),
            lambda rows: int(rows[0][0]),
        )
    )
