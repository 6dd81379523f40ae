"""A database of the project; all names in Dagster are derived from its name."""

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import dagster as dg

from ..client import Client, InvalidArgument

DEFAULT = "pgque"

_KEY = "pgque/database"
# Two underscores end a prefix.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
# Parameters of asset functions, and a resource that Dagster itself has.
_TAKEN = ("batch", "context", "io_manager", "pyspark")

# The names of each database that this process has consumed from.
_names: dict[UUID, set[str]] = {}


@dataclass(frozen=True)
class Database:
    """A database with queues, known by the key of its PgqueResource in the Definitions.

    The default database's names in Dagster have no prefix; those of the others have.

    Raises:
        DagsterInvalidDefinitionError: if the name cannot be the key of such a resource.
    """

    name: str = DEFAULT

    def __post_init__(self) -> None:
        """Refuses a name that cannot be the parameter with which functions take the resource."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            problem = "write the key of a PgqueResource: letters and digits, with single _ between"
        elif self.name in _TAKEN or keyword.iskeyword(self.name):
            problem = "that name has another meaning, so give the PgqueResource another key"
        else:
            return
        raise dg.DagsterInvalidDefinitionError(f"database is {self.name!r}: {problem}")

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """Returns the database that the metadata of an asset name."""
        return cls(metadata.get(_KEY, DEFAULT))

    @property
    def tags(self) -> dict[str, str]:
        """The tags and metadata that name it; empty for the default database."""
        return {} if self.name == DEFAULT else {_KEY: self.name}

    @property
    def prefix(self) -> list[str]:
        """The first part of the keys of assets other than queues; empty for the default one."""
        return [] if self.name == DEFAULT else [self.name]

    @property
    def command(self) -> str:
        """The command line that works on it."""
        return "pgque" if self.name == DEFAULT else f"pgque --database {self.name}"

    def named(self, name: str) -> str:
        """Returns the name of its sensor, job, schedule, step or resource."""
        return "__".join([*self.prefix, name])

    def label(self, queue: str, consumer: str) -> str:
        """Returns the name of a consumer in messages, which is unique in the project."""
        of = "" if self.name == DEFAULT else f" of database {self.name}"
        return f"{queue}/{consumer}{of}"

    def queue_key(self, queue: str) -> dg.AssetKey:
        """Returns the key of the external asset that stands for a queue."""
        # The suffix distinguishes the queue from its table: Dagster's graph only shows the key's
        # last part, cut to 18 characters.
        return dg.AssetKey([self.name, f"{queue}_queue"])

    def dead_letters_key(self, queue: str) -> dg.AssetKey:
        """Returns the key of the external asset that stands for a queue's dead letters."""
        return dg.AssetKey([self.name, f"{queue}_dlq"])

    def refuse_second_name(self, client: Client) -> None:
        """Refuses a database from which this process also consumes under another name.

        Dagster would take two consumers of the same name for consumers of two databases, and each
        would get some of the batches.

        Raises:
            InvalidArgument: has all names; from then on, each of them is refused.
        """
        names = _names.setdefault(client.incarnation(), set())
        names.add(self.name)
        if len(names) > 1:
            raise InvalidArgument(
                f"the resources {' and '.join(sorted(names))} reach the same database",
                "Correct the url of all but one, or use one resource for all of its queues; then "
                "reload the code location.",
            )


DEFAULT_DATABASE = Database()


def queue_key(queue: str, database: str = DEFAULT) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue.

    Args:
        queue: the queue's name.
        database: the key of the PgqueResource.
    """
    return Database(database).queue_key(queue)


def dead_letters_key(queue: str, database: str = DEFAULT) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue's dead letters.

    Args:
        queue: the queue's name.
        database: the key of the PgqueResource.
    """
    return Database(database).dead_letters_key(queue)
