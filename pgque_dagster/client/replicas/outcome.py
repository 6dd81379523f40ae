"""What a batch does to each replica, and what its ack records about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..batch import Batch
from ..encoding import encode
from ..errors import InvalidArgument
from ..operation import Call
from ..read_batch import ReadBatch
from ..session import Session
from .source import SourceTable
from .spec import TableSpec


@dataclass(frozen=True)
class Replicated:
    """What a batch did to a replica.

    Attributes:
        version: its version after the batch; None if nothing was stored, or it has no versions.
        rows: how many rows were copied, or how many keys changed.
        reason: why the table was copied; None if changes were applied.
        written: how many rows of the replica a copy changed; None if it wrote all of them again.
        added: by how many rows the replica grew; None if that is not counted.
        resumed: what an earlier attempt without an ack did, `changed` or `copied`. Then the
            figures are unknown. None if there was no such attempt.
        is_truncated: whether the changes were a TRUNCATE and what followed it.
        doubt: why other rows may differ from now on, until a comparison finds that none do.
    """

    source: SourceTable
    location: str
    version: int | None
    rows: int
    reason: str | None
    written: int | None = None
    added: int | None = None
    resumed: Literal["changed", "copied"] | None = None
    is_truncated: bool = False
    doubt: str | None = None

    @property
    def is_copied(self) -> bool:
        """Whether the batch copied the table, so that the replica has a new copy."""
        return self.reason is not None or self.resumed == "copied"

    @property
    def is_stored(self) -> bool:
        """Whether the batch changed the replica."""
        return bool(self.is_copied or self.is_truncated or self.resumed or self.rows)

    @property
    def spec(self) -> TableSpec:
        """The spec of the table."""
        return self.source.spec


@dataclass(frozen=True)
class Apart:
    """A table that is set apart from a batch.

    Attributes:
        tick_id: its replica misses the events after this tick, or its copy needs them.
        reason: why it is set apart; empty if it is only being copied.
        copying: how far its copy in parts is; None without.
    """

    spec: TableSpec
    name: str
    tick_id: int
    reason: str
    copying: str | None = None


@dataclass(frozen=True)
class Copied:
    """The state of a table at a copy: the transactions in the snapshot, and the table's shape."""

    transactions: str
    shape: str


def acked(batch: ReadBatch) -> Batch:
    """Returns a batch that can be acked, and refuses a window."""
    if not isinstance(batch, Batch):
        raise InvalidArgument("a window has no replicas", "Replicate the batches of a consumer.")
    return batch


def record_batch(batch: Batch, done: Sequence[Replicated | Apart]) -> None:
    """Makes the ack of a batch record what it did to each replica of its consumer."""
    tables = [
        {"table_name": each.name, "is_stored": False}
        if isinstance(each, Apart)
        else {
            "table_name": each.source.name,
            "location": each.location,
            "is_stored": each.is_stored,
            "is_copied": each.is_copied,
            "row_count": each.rows if each.reason is not None or each.is_truncated else None,
            "added": each.added,
        }
        for each in done
    ]
    values = (batch.queue, batch.consumer, batch.lease.tick_id, encode(tables))
    query = "select pgque.note_replicas(%s, %s, %s, %s::jsonb)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def remember(batch: Batch, table: str, copied: Copied, *, is_copy: bool = True) -> None:
    """Makes the ack of a batch record the last copy of a table, or an equivalent of a copy.

    If the table was not read completely, rows that may differ still may.
    """
    place = (batch.queue, batch.consumer, table)
    values = (*place, copied.transactions, copied.shape, is_copy, *place)
    query = (
        "select pgque.set_replicated(%s, %s, %s, %s::pg_snapshot, %s, case when not %s then"
        " (select doubt from pgque.replicas(%s) where consumer_name = %s and table_name = %s) end)"
    )
    batch.before_ack(lambda connection: connection.execute(query, values))


def remember_shape(batch: Batch, table: str, copied: Copied, doubt: str | None = None) -> None:
    """Makes the ack of a batch record the shape that a table has now, if its copy still counts.

    With it, the ack records why rows may differ, if they may.
    """
    values = (batch.queue, batch.consumer, copied.shape, doubt, batch.queue, batch.consumer)
    query = (
        "select pgque.set_replicated(%s, %s, table_name, copied, %s, %s)"
        " from pgque.replicated_tables(%s, %s) where table_name = %s and copied::text = %s"
    )
    found = (*values, table, copied.transactions)
    batch.before_ack(lambda connection: connection.execute(query, found))


def forget(batch: Batch, table: str) -> None:
    """Makes the ack of a batch forget a table's last copy, so that it must be copied before use."""
    values = (batch.queue, batch.consumer, table)
    query = "select pgque.forget_replicated(%s, %s, %s)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def remember_stored(batch: Batch) -> None:
    """Makes the ack of a batch record that all replicas have it."""
    values = (batch.queue, batch.consumer, batch.lease.tick_id)
    query = "select pgque.note_stored(%s, %s, %s)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def stored_ticks(session: Session, queue: str, consumer: str) -> tuple[int, int] | None:
    """Returns the tick of the last acked batch, and the end of the empty batches after it.

    The values are None if no run has recorded them yet.
    """
    return session.run(
        Call(
            "select stored_tick, empty_to from pgque.stored_ticks(%s, %s)",
            (queue, consumer),
            lambda rows: (int(rows[0][0]), int(rows[0][1])) if rows else None,
        )
    )
