"""Whose the tables are that a batch has changes of."""

from collections.abc import Set

from ..batch import Batch
from ..captured_tables import captured_tables
from ..errors import InvalidArgument
from ..operation import Call
from .standing import forget


def check_known(batch: Batch, tables: Set[str], found: Set[str]) -> None:
    """Refuses a batch with changes of a table that is captured and not replicated.

    Changes of a table that another consumer replicates are skipped. If the consumer replicates
    it again, it copies it.

    Args:
        batch: the batch.
        tables: the names of the tables to replicate.
        found: the tables of its events.

    Raises:
        InvalidArgument: if it has such changes.
    """
    queue, unknown = batch.queue, found - tables
    if not unknown:
        return
    captured = unknown & set(captured_tables(batch.session, queue))
    others = batch.session.run(
        Call(
            "select t from unnest(%s::text[]) t where pgque.replicated_by(%s, t) <> %s::text[]",
            (sorted(captured), queue, [batch.consumer]),
            lambda rows: {table for (table,) in rows},
        )
    )
    for table in sorted(others):
        forget(batch, table)
    if lost := sorted(captured - others):
        raise InvalidArgument(
            f"batch {batch.batch_id} of {queue} has changes of {', '.join(lost)}, which is "
            "captured and not among the tables to replicate",
            "Add it to the tables, or end its capture: select "
            f"pgque.uncapture('{lost[0]}', '{queue}'); another consumer than replicas gets it by a "
            "queue of its own.",
        )
