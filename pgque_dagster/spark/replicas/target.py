"""Where replicas in the lake are. It loads neither Spark nor the libraries of the formats."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import HARD, Deletes, check_deletes

_PATH_PART = re.compile(r"[\w$ -]+")
_COLUMN = re.compile(r'[^.`"\\\x00-\x1f]+')


@dataclass(frozen=True)
class DeltaReplicas:
    """Where the replicas of tables are in Delta.

    Attributes:
        base_dir: a directory that driver and executors share, or a URL such as `s3://bucket/lake`.
            The replica of `public.orders` is in `public/orders`.
        storage_options: credentials and the like for a URL, as Delta's library names them.
        deletes: what becomes of rows that the table has no longer: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
    """

    base_dir: str
    storage_options: Mapping[str, str] | None = None
    deletes: Deletes = HARD

    def __post_init__(self) -> None:
        """Refuses what is no way to treat deleted rows."""
        check_deletes(self.deletes)


@dataclass(frozen=True)
class IcebergReplicas:
    """Where the replicas of tables are in Iceberg.

    Attributes:
        warehouse: where their files are: a directory that driver and executors share, or a URL such
            as `s3://bucket/warehouse`. The replica of `public.orders` is the table `public.orders`.
        catalog: properties of a catalog, as pyiceberg takes them, such as
            `{"type": "rest", "uri": "https://…"}`; None for one in the tables' own database.
        catalog_schema: the schema of the catalog in that database.
        storage_options: credentials and the like for a URL, such as `aws_access_key_id`.
        deletes: what becomes of rows that the table has no longer: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
    """

    warehouse: str
    catalog: Mapping[str, str] | None = None
    catalog_schema: str = "iceberg_catalog"
    storage_options: Mapping[str, str] | None = None
    deletes: Deletes = HARD

    def __post_init__(self) -> None:
        """Refuses what is no way to treat deleted rows."""
        check_deletes(self.deletes)


LakeReplicas = DeltaReplicas | IcebergReplicas


def check_path(name: str, path: Sequence[str]) -> None:
    """Refuses a table whose replica in the lake cannot have its name.

    Args:
        name: the table's name, for people.
        path: its schema and name without quotes.

    Raises:
        InvalidArgument: if a folder cannot have such a name.
    """
    if not all(_PATH_PART.fullmatch(part) for part in path):
        raise InvalidArgument(
            f"{name} has a name that a folder cannot have",
            "Rename the table, or leave it out: letters, digits, _, $, - and spaces are allowed.",
        )


def check_columns(name: str, columns: Sequence[str]) -> None:
    """Refuses columns that a replica in the lake cannot have.

    Args:
        name: the table's name, for people.
        columns: the names of the columns of its replica.

    Raises:
        InvalidArgument: if one cannot be read from JSON or found by Spark.
    """
    seen: set[str] = set()
    for column in columns:
        if not _COLUMN.fullmatch(column) or column.lower() in seen:
            raise InvalidArgument(
                f"column {column} of {name} has a name that the lake cannot have, or one that "
                "differs from another's in case alone",
                "Rename it, or leave it out by exclude: a dot, a quote, a backtick, a backslash "
                "and control characters are not allowed.",
            )
        seen.add(column.lower())
