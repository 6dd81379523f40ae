"""What sinks and their attempts know about a table of a lake: its name, errors and properties."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, get_args

from ...client import InvalidArgument, PgqueError
from ...client.read_batch import ReadBatch
from .files.storage import Storage, StorageFailed, is_away, way_out
from .members import INCARNATION, Stored, incarnations_in, of_shard, refused_members
from .modes import SchemaEvolution
from .table_checks import check_incarnation


class LakeTable(ABC):
    """A table that stores batches. Its properties name the incarnations of their databases.

    Args:
        storage: where the table is, or new tables are.
        evolution: whether the table may get columns.

    Attributes:
        not_found: the error of the format's library for a missing table.
        libraries: the modules whose errors are failures of the table's storage.
    """

    not_found: ClassVar[type[Exception]]
    libraries: ClassVar[tuple[str, ...]]

    def __init__(self, storage: Storage, evolution: SchemaEvolution) -> None:
        if evolution not in get_args(SchemaEvolution):
            raise InvalidArgument(
                f"no schema_evolution {evolution!r}", "It may be fail or add_columns."
            )
        self.storage = storage
        self.evolution = evolution

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name for errors."""

    @property
    def records(self) -> Storage:
        """The place where vectors record their failures."""
        return self.storage

    @abstractmethod
    def properties_of(self, table: Any) -> Mapping[str, str]:
        """Returns the properties of the table, including those that the first write set."""

    @abstractmethod
    def adopting(self, key: str, incarnation: str) -> str:
        """Returns the statement that sets a property of the table to an incarnation."""

    @abstractmethod
    def epochs_of(self, table: Any, claim: ReadBatch) -> Mapping[str, Stored]:
        """Returns which attempts have stored members of a claim in a state of the table."""

    @contextmanager
    def errors(self, batch: ReadBatch) -> Iterator[None]:
        """Raises `StorageFailed` for an error of the libraries or of files, naming the table."""
        try:
            yield
        except PgqueError:
            raise
        except self.not_found:
            raise StorageFailed(
                f"{self.name} was deleted while {batch} was written",
                "Run the batch again: the next attempt creates the table.",
            ) from None
        except Exception as error:
            library = type(error).__module__.partition(".")[0]
            if library not in self.libraries and not isinstance(error, OSError):
                raise
            told = self.storage.without_secrets(error)
            raise StorageFailed(
                f"{self.name} did not take {batch}: {told}",
                way_out(told),
                passing=is_away(error, told),
            ) from None

    def refused(self, table: Any, claim: ReadBatch) -> dict[str, Stored]:
        """Returns the members of a claim that a state of the table refuses.

        Raises:
            InvalidArgument: if it refuses the claim.
        """
        known, own = incarnations_in(self.properties_of(table)), claim.incarnation
        database = claim.session and claim.session.database
        adopt = self.adopting(INCARNATION, own)
        check_incarnation(self.name, known.get(""), own, database, adopt)
        return refused_members(
            self.name, claim, known, lambda shard, own: self.adopting(of_shard(shard), own)
        )
