"""Records of a claim's members in tables: their incarnations and, for vectors, what is stored.

A stored vector is not computed again. A run that claims one of its members only acks it, with the
failures that the vector recorded in `_pgque/vectors/<id>-<incarnation>.json` before it was
published: one file for each member, which is removed after the member's ack. An id belongs to one
attempt, so no other attempt writes these files.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from ...client import BatchNotOpen, InvalidArgument, LeaseLost
from ...client.read_batch import ReadBatch
from .files.storage import Storage

_RECORDS = "_pgque/vectors"
INCARNATION = "pgque.lineage"

# The epoch of the attempt that stored a member, or why the member is refused.
Stored = InvalidArgument | int


def of_shard(shard: str) -> str:
    """Returns the property that names the incarnation of a shard; for "", of the whole table."""
    return f"{INCARNATION}.{shard}" if shard else INCARNATION


def incarnations_in(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the incarnations that properties of a table name, by shard."""
    return {
        key.removeprefix(INCARNATION).removeprefix("."): value
        for key, value in properties.items()
        if value and (key == INCARNATION or key.startswith(f"{INCARNATION}."))
    }


def refused_members(
    table: str, claim: ReadBatch, known: Mapping[str, str], adopt: Callable[[str, str], str]
) -> dict[str, Stored]:
    """Returns the shards of a claim that a table knows under another incarnation.

    Args:
        table: its name for errors.
        claim: the claim.
        known: the incarnations that the table knows, by shard.
        adopt: returns how to record a shard's incarnation; an empty one for a shard that is gone.

    Raises:
        InvalidArgument: for a window, if one of its shards is refused, or if it lacks a shard whose
            rows the table has: they may be from an earlier attempt, which it replaces.
    """
    refused: dict[str, Stored] = {
        shard: InvalidArgument(
            f"{table} holds batches of shard {shard} of incarnation {known[shard]}, and its "
            f"database is of incarnation {own}: it may deliver events again that are stored",
            f"Check that the URL of {shard} names its database. After a failover or a restore, "
            "delete the rows of the events that it delivers again; for a shard that was replaced "
            f"by another one, nothing. Then adopt it: {adopt(shard, own)}",
        )
        for shard, own in claim.incarnations.items()
        if known.get(shard, own) != own
    }
    if claim.is_window:
        epochs_in(refused)
        for shard in known.keys() - claim.incarnations.keys():
            raise InvalidArgument(
                f"{table} has windows with rows of shard {shard}, which is not among the databases "
                "of this one: materialized again, they would lose these rows",
                f"Name {shard} in databases, or store into another table. If it is gone for good "
                f"and they may lose its rows, say so: {adopt(shard, '')}",
            )
    return refused


def newest_in(
    table: str, claim: ReadBatch, newest: Mapping[str, tuple[int, int]]
) -> dict[str, Stored]:
    """Returns which vectors have members of a vector, by shard, or why a shard is refused.

    Args:
        table: its name for errors.
        claim: the vector.
        newest: for each consumer, its newest batch in the table, and the id of its vector.
    """
    stored: dict[str, Stored] = {}
    for shard, batch in claim.members.items():
        found, vector = newest.get(batch.origin, (0, 0))
        if found > batch.batch_id:
            stored[shard] = InvalidArgument(
                f"{table} has batch {found} of shard {shard}, and batch {batch.batch_id} is "
                "claimed: a later run took it over, or its database went back in time",
                "If no run continues, store into another table.",
            )
        elif found == batch.batch_id:
            stored[shard] = vector
    return stored


def epochs_in(stored: Mapping[str, Stored]) -> set[int]:
    """Returns the epochs of the attempts that have stored members of a claim.

    Raises:
        InvalidArgument: if a member is refused.
    """
    for each in stored.values():
        if isinstance(each, InvalidArgument):
            raise each
    return {each for each in stored.values() if isinstance(each, int)}


@contextmanager
def recorded(claim: ReadBatch, storage: Storage) -> Iterator[None]:
    """Records the failures of a vector before the block publishes it. Does nothing for others.

    Raises:
        InvalidArgument: if the vector was stored before.
        StorageFailed: if the record cannot be written.
    """
    if not claim.is_final:
        yield
        return
    if claim.is_stored:
        raise InvalidArgument(
            "this run has stored its batches before", "Unite the DataFrames, and write them once."
        )
    claim.run_checks()
    for member in claim.members.values():
        with storage.create(_path(member, claim.batch_id)) as file:
            file.write(member.dump_failures().encode())
    try:
        yield
    except (LeaseLost, BatchNotOpen, InvalidArgument):
        for member in claim.members.values():
            forget(storage, member, claim.batch_id)
        raise
    claim.is_stored = True


def take_over(storage: Storage, claim: ReadBatch, stored: Mapping[str, Stored]) -> None:
    """Loads, for their acks, the failures that vectors recorded of stored members.

    Raises:
        StorageFailed: if a record cannot be read.
    """
    for shard, vector in stored.items():
        if isinstance(vector, int):
            member = claim.members[shard]
            with storage.errors("cannot be read"):
                source = storage.source(_path(member, vector))
                text = pa.input_stream(source, compression=None).read()
            member.load_failures(text.decode())


def forget(storage: Storage, member: ReadBatch, vector: int) -> None:
    """Removes the failures recorded for a member of a vector, which are no longer needed."""
    storage.remove([_path(member, vector)])


def _path(member: ReadBatch, vector: int) -> str:
    return f"{_RECORDS}/{vector}-{member.incarnation}.json"
