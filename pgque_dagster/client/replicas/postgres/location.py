"""The place of replicas in PostgreSQL, and the connection to it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from ...connection import connect
from ...errors import ConnectionFailed, InvalidArgument, PermissionDenied, translated
from ...rights import Connection
from ...session import Session
from ..deletes import HARD, MARKS, Deletes, check_append, check_deletes
from ..snapshot import print_settings
from ..source import SourceTable
from .compare import ComparedTable

# The maximum number of columns of a table.
_MAX_COLUMNS = 1600
# Settings that change how the target reads texts.
_READING = ("set array_nulls = on", "set xmloption = content")


@dataclass(frozen=True)
class PostgresReplicas:
    """The place of table replicas in PostgreSQL.

    Attributes:
        url: the database; None for the database of the tables.
        schema: the schema of all replicas; None for each table's own schema. It is created if it is
            missing.
        deletes: what happens to rows that the table no longer has: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
    """

    url: str | None = None
    schema: str | None = None
    deletes: Deletes = HARD

    def __post_init__(self) -> None:
        """Raises an error if each table would be its own replica."""
        check_deletes(self.deletes)
        if self.url is None and self.schema is None:
            raise InvalidArgument(
                "each table would be its own replica",
                "Name the schema of the replicas, or the url of another database.",
            )

    def check(self, source: SourceTable) -> None:
        """Raises `InvalidArgument` if a table cannot have a replica here."""
        check_append(source.name, source.key, self.deletes)
        if source.spec.unstorable:
            raise InvalidArgument(
                f"unstorable of {source.name} is for the lake; PostgreSQL can store every value",
                "Leave unstorable out.",
            )
        # A batch is staged in a table with one more column, which says whether a row was deleted.
        most = _MAX_COLUMNS - max(1, len(MARKS[self.deletes]))
        if len(source.columns) > most:
            raise InvalidArgument(
                f"table {source.name} has {len(source.columns)} columns, and a replica in "
                f"PostgreSQL with deletes: {self.deletes} has at most {most}",
                "Leave out columns with exclude.",
            )

    def check_places(self, sources: Sequence[SourceTable]) -> None:
        """Raises `InvalidArgument` if two of the tables would have the same replica."""
        places = [(self.schema or each.path[0], each.path[-1]) for each in sources]
        for source, place in zip(sources, places, strict=True):
            if places.count(place) > 1:
                raise InvalidArgument(
                    f"{source.name} and another table would have one replica: {'.'.join(place)}",
                    "Use two replicas with different schemas.",
                )


@contextmanager
def connected_target(session: Session, target: PostgresReplicas) -> Iterator[Connection]:
    """Opens a connection to the database of the replicas."""
    try:
        opened = connect(target.url or session.url)
    except ConnectionFailed as error:
        # The queue's database has errors with the same texts.
        told = f"the target's url: {error.args[0]}" if target.url else error.args[0]
        raise ConnectionFailed(told, error.hint) from error
    with translated(), opened as connection:
        # The settings of the connections from which rows are copied: rows are compared as text.
        for setting in (*print_settings(session), *_READING):
            # With its own search_path, the target finds the ledger, and prints no type there.
            if not setting.startswith("set search_path"):
                connection.execute(setting.encode())
        try:
            yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise PermissionDenied(
                f"the replicas' database {connection.info.dbname} refuses role "
                f'"{connection.info.user}": {error.diag.message_primary or error}',
                "The role needs TEMPORARY on the database, and CREATE and USAGE on the schema of "
                "the replicas, which it owns.",
            ) from error


def replica_of(
    there: Connection, target: PostgresReplicas, source: SourceTable, queue: str, consumer: str
) -> ComparedTable:
    """Returns the replica of a table, in a transaction of the target.

    Raises:
        InvalidArgument: if the replica is another table, or the table cannot have one.
    """
    target.check(source)
    schema = target.schema or source.path[0]
    return ComparedTable(there, schema, source, f"{queue}/{consumer}", target.deletes)
