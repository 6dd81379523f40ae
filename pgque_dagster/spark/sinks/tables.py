"""What the sinks of tables share: the column `batch_id`, the lineage of a table, and results."""

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client import Batch, InvalidArgument, calls

BATCH_ID = "batch_id"
LINEAGE = "pgque.lineage"

SchemaEvolution = Literal["fail", "add_columns"]


@dataclass(frozen=True)
class StoredBatch:
    """What a sink stored of a batch.

    Attributes:
        version: the version of the table that has it: of Delta, or the snapshot's id of Iceberg.
        rows: how many rows the DataFrame had.
    """

    version: int
    rows: int


@dataclass(frozen=True)
class BatchIdentity:
    """The name of a batch that no other batch has."""

    lineage: str
    queue: str
    consumer: str
    batch_id: int

    @classmethod
    def of(cls, claim: Batch) -> "BatchIdentity":
        """Returns the identity of a claimed batch."""
        lineage = str(claim.session.run(calls.maintenance.lineage()))
        return cls(lineage, claim.queue, claim.consumer, claim.batch_id)

    def __str__(self) -> str:
        return f"batch {self.batch_id} of {self.queue}/{self.consumer}"


def with_batch_id(frame: DataFrame, batch_id: int) -> DataFrame:
    """Adds the column `batch_id`, by which the rows of a batch are found in the table.

    Raises:
        InvalidArgument: if the DataFrame has a column of this name, in any case.
    """
    for name in frame.columns:
        if name.lower() == BATCH_ID:
            raise InvalidArgument(
                f"the column {name} is the sink's own, with the batch of each row",
                "Give it another name: withColumnRenamed().",
            )
    return frame.withColumn(BATCH_ID, f.lit(batch_id).cast("bigint"))


def check_lineage_of(table: str, found: str | None, claim: Batch, own: str, adopt: str) -> None:
    """Refuses a table with batches of another database.

    Args:
        table: its name for errors.
        found: the lineage that the table has as a property.
        claim: the claim of the batch to store.
        own: the lineage of the database.
        adopt: the statement that makes it a table of this lineage.

    Raises:
        InvalidArgument: if it is of another lineage, or of none.
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
        f"{table} holds batches of lineage {found}, and database {database} is of lineage {own}: "
        "batches of one id would replace each other",
        "Store into another table. After a failover or a restore, to go on here: delete the rows "
        "of the batches that the database delivers again (docs/restore.md says how to find them), "
        f"then {adopt}",
    )
