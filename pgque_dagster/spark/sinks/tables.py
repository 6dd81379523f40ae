"""Tables of a lake in which batches are stored: what Delta and Iceberg share.

`table_output.py` has the way of a batch into such a table.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ...client import InvalidArgument, PgqueError
from ..batch import SparkBatch
from .files.data_files import with_batch_id
from .files.storage import Storage, StorageFailed, way_out
from .modes import Maintained, SchemaEvolution, check_evolution
from .publication import BatchIdentity
from .table_output import FOLDER, TableOutput

# The names of data files: batch, epoch and the file's own name.
WRITTEN = re.compile(rf"{FOLDER}/(\d+)-(\d+)-[0-9a-f]{{32}}/(part-[0-9a-f]{{32}}\.parquet)")


@dataclass(frozen=True)
class StoredBatch:
    """What a sink stored of a batch.

    Attributes:
        version: the version of the table that has it: of Delta, or the snapshot's id of Iceberg.
        rows: how many rows the DataFrame had.
    """

    version: int
    rows: int


class TableSink(ABC):
    """A table that batches are stored in.

    Args:
        storage: where the table is, or new tables are.
        evolution: whether the table may get columns.

    Attributes:
        not_found: the error of the format's library for a table that is missing.
        libraries: the modules whose errors are failures of the table's storage.
        maintained_by_spark: whether `maintain` needs a session of Spark.
    """

    maintained_by_spark: ClassVar[bool] = False
    not_found: ClassVar[type[Exception]]
    libraries: ClassVar[tuple[str, ...]]

    def __init__(self, storage: Storage, evolution: SchemaEvolution) -> None:
        check_evolution(evolution)
        self.storage = storage
        self.evolution = evolution

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name for errors."""

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, schema: StructType
    ) -> AbstractContextManager["TableOutput[Any]"]:
        """Begins an attempt to store a batch in files with these columns."""

    @abstractmethod
    def maintain(self, url: str, *, retention: timedelta = timedelta(days=7)) -> Maintained:
        """Unites small files, and deletes files that nobody needs. Batches can be stored meanwhile.

        Args:
            url: the queue's database.
            retention: how old a file must be to be deleted: longer than any attempt at a batch and
                any reader takes.

        Raises:
            InvalidArgument: if there is no table, or the retention is under a day.
            StorageFailed: if files cannot be written or removed.
        """

    def write(self, batch: SparkBatch, frame: DataFrame) -> StoredBatch:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it to a table once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The version of the table that has the batch, and the number of rows.

        Raises:
            InvalidArgument: if the table is of another or an unknown incarnation, cannot take the
                columns, or has rules that this sink does not check; if a key is null or repeated;
                if this claim wrote the batch before.
            PermissionDenied: if the role may not use or create the catalog of Iceberg.
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            StorageFailed: if files or table cannot be written. The batch stays open.
        """
        with self.attempt(batch, with_batch_id(frame.schema)) as output:
            output.begin()
            output.write(batch, frame, batch.batch_id)
            output.publish()
            return StoredBatch(output.version, output.rows)

    @contextmanager
    def existing(self) -> Iterator[None]:
        """Raises `InvalidArgument` if the block finds no table."""
        try:
            yield
        except self.not_found:
            raise InvalidArgument(
                f"there is no {self.name}", "The first batch that is stored creates it."
            ) from None

    @contextmanager
    def errors(self, batch: BatchIdentity) -> Iterator[None]:
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
                f"{self.name} did not take {batch}: {told}", way_out(told)
            ) from None
