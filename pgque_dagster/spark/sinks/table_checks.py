"""The checks before rows get into a table: whose batches it has, and its columns."""

from pyspark.sql.types import StructType

from ...client import InvalidArgument
from ...client.sharded_claim import SHARDS
from .modes import SchemaEvolution


def check_incarnation(table: str, found: str | None, own: str, database: str, adopt: str) -> None:
    """Refuses a table of another incarnation, whose batch ids mean other batches, or of none.

    A table for several databases also refuses the batches of one, and the reverse.

    Args:
        table: its name for errors.
        found: the incarnation that is recorded in the table, or None.
        own: the incarnation of the database, or `SHARDS` of several.
        database: its name.
        adopt: how to record this incarnation.
    """
    if own == SHARDS != found:
        raise InvalidArgument(
            f"{table} was not created for a queue over several databases",
            "Store into another table (for assets, by another base_dir, namespace or key). If the "
            "consumer has an open batch, first finish it with the definition of one database, "
            "which may have stored it here: the other table would get it again. Copy the rows only "
            "then.",
        )
    if found is None:
        raise InvalidArgument(
            f"{table} was not created by this sink, or holds batches of an unknown database",
            f"Store into another table. If it has no batch of another database than {database}, "
            f"and none that is in the queue still, adopt it: {adopt}",
        )
    if found == SHARDS != own:
        raise InvalidArgument(
            f"{table} is for a queue over several databases, and accepts no batches of one: "
            f"here {database}",
            "Store into another table (for assets, by another base_dir, namespace or key).",
        )
    if found != own:
        raise InvalidArgument(
            f"{table} holds batches of incarnation {found}, and database {database} is of "
            f"incarnation {own}: batches of one id would replace each other",
            "Store into another table. After a failover or a restore, to continue here: delete the "
            "rows of the batches that the database delivers again (docs/restore.md says how to "
            "find them; after a switchover that lost nothing there are none), then adopt it: "
            f"{adopt}",
        )


def check_fit(
    table: str, stored: StructType, given: StructType, evolution: SchemaEvolution = "fail"
) -> list[str]:
    """Returns the columns of a DataFrame that a table lacks.

    Names and types must be the same, unless `evolution` lets each lack columns of the other.

    Raises:
        InvalidArgument: naming the columns that differ.
    """
    there, here = ({x.name: x.dataType.simpleString() for x in each} for each in (stored, given))
    added = [name for name in here if name not in there]
    # Readers ignore case.
    allowed = {name for name in there if name not in here} | {
        name for name in added if name.lower() not in map(str.lower, there)
    }
    differences = [
        f"{name} is {there.get(name, 'missing')} there, {here.get(name, 'missing')} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name) and not (evolution != "fail" and name in allowed)
    ]
    if differences:
        raise InvalidArgument(
            f"{table} has other columns than the DataFrame: {'; '.join(differences)}",
            "Cast, rename or leave out columns, or store into another table (for assets, by "
            "another base_dir or key). With schema_evolution='add_columns', tables of Delta and "
            "Iceberg get columns, and have nulls in those that the DataFrame lacks.",
        )
    return added
