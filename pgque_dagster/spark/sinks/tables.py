"""What the sinks of tables share: the column `batch_id`, a table's incarnation, and results."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from ...client import Batch, InvalidArgument
from ...client.window import Window
from .files.data_files import with_constants
from .files.storage import StorageFailed
from .modes import BATCH_ID, SchemaEvolution
from .publication import BatchIdentity

INCARNATION = "pgque.lineage"


@dataclass(frozen=True)
class StoredBatch:
    """What a sink stored of a batch.

    Attributes:
        version: the version of the table that has it: of Delta, or the snapshot's id of Iceberg.
        rows: how many rows the DataFrame had.
    """

    version: int
    rows: int


def refuse_window(claim: Batch, target: str) -> None:
    """Refuses to store a window where an earlier output of it cannot be told apart.

    Raises:
        InvalidArgument: if the claim is a window.
    """
    if isinstance(claim, Window):
        raise InvalidArgument(
            f"{target} cannot replace the rows of a window when it is materialized again",
            "Store windows as Parquet, in a Delta table by append, or in an Iceberg table.",
        )


def with_batch_id(schema: StructType) -> StructType:
    """Returns the columns of a table: `batch_id` tells which rows are of which batch.

    Args:
        schema: of the DataFrame.

    Raises:
        InvalidArgument: if the DataFrame has a column of this name, in any case.
    """
    for name in schema.names:
        if name.lower() == BATCH_ID:
            raise InvalidArgument(
                f"the column {name} is the sink's own, with the batch of each row",
                "Give it another name: withColumnRenamed().",
            )
    return with_constants(schema, [BATCH_ID])


def check_names(
    table: str,
    stored: Sequence[str],
    required: Sequence[str],
    given: Sequence[str],
    evolution: SchemaEvolution,
) -> list[str]:
    """Compares the names of a DataFrame's columns with those of the table.

    Args:
        table: the table's name for errors.
        stored: the columns of the table.
        required: those of them that must not be null.
        given: the columns of the DataFrame.
        evolution: whether the table may get columns.

    Returns:
        The columns that the table lacks.

    Raises:
        InvalidArgument: if the rows do not fit the table.
    """
    lower = {name.lower(): name for name in stored}
    added = [name for name in given if name not in stored]
    for name in added:
        if name.lower() in lower:
            raise InvalidArgument(
                f"{table} has the column {lower[name.lower()]}, and the DataFrame has {name}",
                f"Rename it: withColumnRenamed('{name}', '{lower[name.lower()]}').",
            )
    if added and evolution == "fail":
        raise InvalidArgument(
            f"{table} has no column {', '.join(added)}",
            "Leave it out, or let the sink add columns: schema_evolution='add_columns'.",
        )
    lacking = [name for name in required if name not in given]
    missing = [name for name in stored if name not in given]
    if lacking or (missing and evolution == "fail"):
        raise InvalidArgument(
            f"the DataFrame has no column {', '.join(lacking or missing)}, which {table} has",
            "Add it to the DataFrame."
            if lacking
            else "Add it to the DataFrame, or have nulls in it: schema_evolution='add_columns'.",
        )
    return added


def check_incarnation_of(table: str, found: str | None, claim: Batch, own: str, adopt: str) -> None:
    """Refuses a table with batches of another database.

    Args:
        table: its name for errors.
        found: the incarnation that the table has as a property.
        claim: the claim of the batch to store.
        own: the incarnation of the database.
        adopt: the statement that makes it a table of this incarnation.

    Raises:
        InvalidArgument: if it is of another incarnation, or of none.
    """
    if found == own:
        return
    database = claim.session.database
    if found is None:
        raise InvalidArgument(
            f"{table} was not created by this sink, or for another one",
            f"Store into another table. If no rows of another queue are in it, adopt it: {adopt}",
        )
    raise InvalidArgument(
        f"{table} holds batches of incarnation {found}, and database {database} is of incarnation "
        f"{own}: "
        "batches of one id would replace each other",
        "Store into another table. After a failover or a restore, to go on here: delete the rows "
        "of the batches that the database delivers again (docs/restore.md says how to find them), "
        f"then {adopt}",
    )


def check_same(table: str, batch: BatchIdentity, begun: object, found: object) -> None:
    """Refuses a table that was created after the attempt began: its files may be gone.

    Args:
        table: its name for errors.
        batch: the batch to store.
        begun: the id of the table that the attempt began with.
        found: the id of the table that is there now.

    Raises:
        StorageFailed: if they differ.
    """
    if begun != found:
        raise StorageFailed(
            f"{table} was deleted and created again while {batch} was written",
            "Run the batch again: the next attempt stores it in the new table.",
        )
