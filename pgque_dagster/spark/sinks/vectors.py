"""What tables record of several shards: these, and of vectors the newest batches and what failed.

A batch that is stored is not computed again. A run that claims it only acks it, with the failures
that its vector recorded in `_pgque/vectors/<id>-<incarnation>.json` before it was published: a file
for each member, which is removed after the ack of that member. Ids are of one attempt each, so no
other one writes these files.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ...client import BatchNotOpen, InvalidArgument, LeaseLost
from ...client.read_batch import ReadBatch
from ...client.sharded import ShardedClaim
from ...client.vector import Vector
from ...client.window import ShardedWindow
from .files.storage import Storage

_RECORDS = "_pgque/vectors"

# Why a shard is refused, or the id of the vector that has its batch.
Stored = InvalidArgument | int


@contextmanager
def recorded(claim: ReadBatch, storage: Storage) -> Iterator[None]:
    """Records what failed in a vector before the block publishes it. For a batch, does nothing.

    Raises:
        InvalidArgument: if the vector was stored before.
        StorageFailed: if the record cannot be written.
    """
    if not isinstance(claim, Vector):
        yield
        return
    with stored_once(claim):
        claim.run_checks()
        for shard in claim.members:
            with storage.create(_path(claim, shard, claim.batch_id)) as file:
                file.write(claim.dump_failures(shard).encode())
        try:
            yield
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            for shard in claim.members:
                forget(storage, claim, shard, claim.batch_id)
            raise


@contextmanager
def stored_once(claim: Vector) -> Iterator[None]:
    """Notes that the block stores a vector; refuses a second such block by `InvalidArgument`."""
    if claim.is_stored:
        raise InvalidArgument(
            "this run has stored its batches before", "Unite the DataFrames, and write them once."
        )
    yield
    claim.is_stored = True


def take_over(storage: Storage, claim: Vector, stored: Mapping[str, Stored]) -> None:
    """Gives members that are stored the failures that their vectors recorded, for their acks.

    Raises:
        StorageFailed: if a record cannot be read.
    """
    for shard, vector in stored.items():
        if isinstance(vector, InvalidArgument):
            continue
        with storage.errors("cannot be read"):
            source = storage.source(_path(claim, shard, vector))
            text = pa.input_stream(source, compression=None).read()
        claim.load_failures(shard, text.decode())


def forget(storage: Storage, claim: Vector, shard: str, vector: int) -> None:
    """Removes the record of what failed in a member of a claim, which nobody needs any more.

    Args:
        storage: where it is.
        claim: the claim.
        shard: the shard of the member.
        vector: the id of the vector that recorded it.
    """
    storage.remove([_path(claim, shard, vector)])


def newest_in(
    table: str, claim: Vector, newest: Mapping[str, tuple[int, int]]
) -> dict[str, Stored]:
    """Returns which vectors have members of a vector, by shard, or why a shard is refused.

    Args:
        table: its name for errors.
        claim: the vector.
        newest: for each consumer, its newest batch in the table, and the id of its vector.
    """
    stored: dict[str, Stored] = {}
    for shard, batch in claim.members.items():
        found, vector = newest.get(claim.consumer_of(shard), (0, 0))
        if found > batch.batch_id:
            stored[shard] = InvalidArgument(
                f"{table} has batch {found} of shard {shard}, and batch {batch.batch_id} is "
                "claimed: a later run took it over, or its database went back in time",
                "If no run goes on, store into another table.",
            )
        elif found == batch.batch_id:
            stored[shard] = vector
    return stored


def refused_shards(
    table: str,
    claim: ShardedClaim[Any],
    incarnations: Mapping[str, str],
    adopt: Callable[[str, str], str],
) -> dict[str, Stored]:
    """Returns the shards of a claim that a table knows by another incarnation.

    Args:
        table: its name for errors.
        claim: the claim.
        incarnations: those that the table knows, by shard.
        adopt: says how to record the incarnation of a shard.
    """
    return {
        shard: InvalidArgument(
            f"{table} holds batches of shard {shard} of incarnation {incarnations[shard]}, and its "
            f"database is of incarnation {own}: it may deliver events again that are stored",
            f"Check that the URL of {shard} names its database. After a failover or a restore, "
            "delete the rows of the events that it delivers again; for a shard that was replaced "
            f"by another one, nothing. Then adopt it: {adopt(shard, own)}",
        )
        for shard, own in claim.incarnations.items()
        if incarnations.get(shard, own) != own
    }


def check_shards(
    table: str,
    claim: ShardedWindow,
    incarnations: Mapping[str, str],
    adopt: Callable[[str, str], str],
) -> None:
    """Refuses a window of other shards than those whose rows a table has.

    Its rows may replace those of an earlier attempt, which had these shards.

    Args:
        table: its name for errors.
        claim: the window.
        incarnations: those that the table knows, by shard.
        adopt: says how to record the incarnation of a shard; an empty one for a shard that is gone.

    Raises:
        InvalidArgument: naming a shard that is missing, or has another incarnation.
    """
    ids_of(refused_shards(table, claim, incarnations, adopt))
    for shard in incarnations.keys() - claim.members.keys():
        raise InvalidArgument(
            f"{table} has windows with rows of shard {shard}, which is not among the databases of "
            "this one: materialized again, they would lose these rows",
            f"Name {shard} in databases, or store into another table. If it is gone for good and "
            f"they may lose its rows, say so: {adopt(shard, '')}",
        )


def not_of_shards(table: str) -> InvalidArgument:
    """Returns the error for a table, by its name, that has batches or windows of one database."""
    return InvalidArgument(
        f"{table} was not created for a queue over several databases",
        "Store into another table (for assets, by another base_dir, namespace or key). If the "
        "consumer has an open batch, first finish it with the definition of one database, which "
        "may have stored it here: the other table would get it again. Copy the rows only then.",
    )


def ids_of(stored: Mapping[str, Stored]) -> set[int]:
    """Returns the ids of the vectors that have members of a vector.

    Raises:
        InvalidArgument: if a shard is refused.
    """
    for each in stored.values():
        if isinstance(each, InvalidArgument):
            raise each
    return {each for each in stored.values() if isinstance(each, int)}


def _path(claim: Vector, shard: str, vector: int) -> str:
    return f"{_RECORDS}/{vector}-{claim.incarnations[shard]}.json"
