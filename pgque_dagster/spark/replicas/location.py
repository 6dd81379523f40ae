"""The place of replicas in the lake. It loads neither Spark nor the libraries of the formats."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import HARD, Deletes, check_append, check_deletes
from ...client.replicas.source import SourceTable

_PATH_PART = re.compile(r"[\w$ -]+")
# Spark reads a column * as all columns.
_COLUMN = re.compile(r'(?!\*$)[^.`"\\\x00-\x1f]+')
# Columns that engines add to an Iceberg table, and that Delta's library adds in a merge.
_OF_ICEBERG = re.compile(
    "_file|_pos|_deleted|_spec_id|_partition|_row_id|_last_updated_sequence_number"
)
_OF_DELTA = re.compile("__delta_rs_.*")


@dataclass(frozen=True)
class DeltaReplicas:
    """The place of table replicas in Delta.

    Attributes:
        base_dir: a directory that driver and executors share, or a URL such as `s3://bucket/lake`.
            The replica of `public.orders` is in `public/orders`.
        storage_options: credentials and other options for a URL, as named by Delta's library.
        deletes: what happens to rows that the table no longer has: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
        deletion_vectors: whether new replicas have them: a batch writes its rows and the positions
            of those that they replace. Otherwise, the driver rewrites files with changed rows, and
            older readers can read the tables.
    """

    base_dir: str
    storage_options: Mapping[str, str] | None = None
    deletes: Deletes = HARD
    deletion_vectors: bool = True

    def __post_init__(self) -> None:
        """Refuses an unknown way to treat deleted rows."""
        check_deletes(self.deletes)

    def check(self, source: SourceTable) -> None:
        """Raises `InvalidArgument` if a table cannot have a replica here."""
        check_append(source.name, source.key, self.deletes)
        check_path(source.name, source.path)
        check_columns(source.name, [column.name for column in source.columns], _OF_DELTA)


@dataclass(frozen=True)
class IcebergReplicas:
    """The place of table replicas in Iceberg.

    Attributes:
        warehouse: where their files are: a directory that driver and executors share, or a URL such
            as `s3://bucket/warehouse`. The replica of `public.orders` is the table `public.orders`.
        catalog: properties of a catalog, as pyiceberg takes them, such as
            `{"type": "rest", "uri": "https://…"}`; None for a catalog in the tables' own database.
        catalog_schema: the schema of the catalog in that database.
        storage_options: credentials and other options for a URL, such as `aws_access_key_id`.
        deletes: what happens to rows that the table no longer has: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
        merge_on_read: whether a batch only lists the positions of the rows that it changes, in
            position deletes. Otherwise it replaces the files that have such rows.
    """

    warehouse: str
    catalog: Mapping[str, str] | None = None
    catalog_schema: str = "iceberg_catalog"
    storage_options: Mapping[str, str] | None = None
    deletes: Deletes = HARD
    merge_on_read: bool = True

    def __post_init__(self) -> None:
        """Refuses an unknown way to treat deleted rows."""
        check_deletes(self.deletes)

    def check(self, source: SourceTable) -> None:
        """Raises `InvalidArgument` if a table cannot have a replica here."""
        check_append(source.name, source.key, self.deletes)
        check_path(source.name, source.path)
        check_columns(source.name, [column.name for column in source.columns], _OF_ICEBERG)


LakeReplicas = DeltaReplicas | IcebergReplicas


def check_path(name: str, path: Sequence[str]) -> None:
    """Refuses a table with a name that the folder of its replica in the lake cannot have."""
    if not all(_PATH_PART.fullmatch(part) for part in path):
        raise InvalidArgument(
            f"{name} has a name that a folder cannot have",
            "Rename the table, or leave it out: letters, digits, _, $, - and spaces are allowed.",
        )


def check_columns(
    name: str, columns: Sequence[str], reserved: re.Pattern[str] | None = None
) -> None:
    """Refuses columns that a replica in the lake cannot have, as Spark would not find them."""
    seen: set[str] = set()
    for column in columns:
        folded = _folded(column)
        is_taken = folded in seen or (reserved is not None and reserved.fullmatch(folded))
        if is_taken or not _COLUMN.fullmatch(column):
            raise InvalidArgument(
                f"column {column} of {name} has a name that the lake cannot have, or one that "
                "differs from another's in case alone",
                "Rename it, or leave it out by exclude: a dot, a quote, a backtick, a backslash, "
                "control characters, * alone and the format's own names are not allowed.",
            )
        seen.add(folded)


def _folded(name: str) -> str:
    """Returns a text that two names share if Spark, like Java, treats them as equal."""
    return "".join((x.upper() if len(x.upper()) == 1 else x).lower()[0] for x in name)
