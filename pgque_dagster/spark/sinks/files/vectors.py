"""What a table records of vectors: its shards, their newest stored batches, and what failed.

A batch that is stored is not computed again. Whoever claims it acks it, with the failures that its
vector recorded in `_pgque/vectors/<id>.json` before it was published. Ids are of one attempt each,
so no other one writes that file. It is removed once all members are acked.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa

from ....client import BatchNotOpen, InvalidArgument, LeaseLost
from ....client.read_batch import ReadBatch
from ....client.vector import Vector
from .storage import Storage

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
    if claim.is_stored:
        raise InvalidArgument(
            "this run has stored its batches before", "Unite the DataFrames, and write them once."
        )
    claim.run_checks()
    _write(storage, claim)
    try:
        yield
    except (LeaseLost, BatchNotOpen, InvalidArgument):
        forget(storage, claim.batch_id)
        raise
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
            text = pa.input_stream(storage.source(_path(vector)), compression=None).read()
        failures = json.loads(text)[claim.record_of(shard)]
        batch = claim.members[shard]
        for ids, reasons, after in failures:
            if after is None:
                batch.dead_letter(ids, reason=reasons)
            else:
                batch.nack(ids, reason=reasons, retry_after=timedelta(seconds=after))


def forget(storage: Storage, vector: int) -> None:
    """Removes the record of a vector that nobody has to ack any more, or that is not published."""
    storage.remove([_path(vector)])


def refused_shards(
    table: str, claim: Vector, incarnations: Mapping[str, str], adopt: Callable[[str, str], str]
) -> dict[str, Stored]:
    """Returns the shards of a vector that a table knows by another incarnation.

    Args:
        table: its name for errors.
        claim: the vector.
        incarnations: those that the table knows, by shard.
        adopt: says how to record the incarnation of a shard.
    """
    return {
        shard: InvalidArgument(
            f"{table} holds batches of shard {shard} of incarnation {incarnations[shard]}, and its "
            f"database is of incarnation {own}: it may deliver events again that are stored",
            "After a failover or a restore, delete the rows of the events that it delivers again; "
            "for a shard that was replaced by another one, nothing. Then adopt it: "
            f"{adopt(shard, own)}",
        )
        for shard, own in claim.incarnations.items()
        if incarnations.get(shard, own) != own
    }


def ids_of(stored: Mapping[str, Stored]) -> set[int]:
    """Returns the ids of the vectors that have members of a vector.

    Raises:
        InvalidArgument: if a shard is refused.
    """
    for each in stored.values():
        if isinstance(each, InvalidArgument):
            raise each
    return {each for each in stored.values() if isinstance(each, int)}


def _path(vector: int) -> str:
    return f"{_RECORDS}/{vector}.json"


def _write(storage: Storage, claim: Vector) -> None:
    failures = {
        claim.record_of(shard): [
            (
                list(each.msg_ids),
                list(each.reasons),
                None if each.retry_after is None else each.retry_after.total_seconds(),
            )
            for each in batch.failures
        ]
        for shard, batch in claim.members.items()
    }
    with storage.create(_path(claim.batch_id)) as file:
        file.write(json.dumps(failures).encode())
