"""The staging table of a sink: executors fill it, and the driver merges it in one transaction."""

import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from ....client.connection import connect
from ....client.errors import InvalidArgument, PgqueError, StagingLost, TransactionOutdated
from ....client.rights import Connection, needing
from ...address import DatabaseAddress
from ...cluster.executor_errors import clear_executor_errors
from ...reading.in_tasks import map_in_tasks
from ...writing.copying import copy_batches
from .columns import StagedColumn
from .merge import Merge, written_by

_PREFIX = "pgque_stage"
# The stages of other attempts at a batch belong to dead ones. A stage is in use for at most a day.
_PROCESS = uuid.uuid4().hex[:8]
_DAY = 86_400
# After a task fails, Spark stops the other tasks without waiting for them.
_SECONDS_FOR_TASKS = 10
# The number of characters of a value that an error shows.
_SHOWN = 100
_VALUE_HINT = "Nothing is stored. Round, cut or cast the values in Spark, or change the column."
_NULL_KEY = "is part of the key and has a null"
_NULL_KEY_HINT = (
    "Nothing is stored. A unique index treats two nulls as different: filter the rows out, or give "
    "them a value with coalesce, and make the column NOT NULL."
)


class Stage:
    """An unlogged table `pgque_stage_<batch>_<attempt>_<time>_<random>` with the rows' columns.

    Its column types hold every value of the rows. `check` compares the values with the target's.

    Args:
        schema: its schema, in which the role needs CREATE.
        merge: how the rows get into the target.
        batch: its name. An attempt removes the stages of earlier attempts at it.
        epoch: identifies the attempt in this process.
    """

    def __init__(self, schema: str, merge: Merge, batch: str, epoch: int) -> None:
        digest = hashlib.sha256(f"{merge.target}|{batch}".encode()).hexdigest()[:12]
        self._batch = f"{_PREFIX}_{digest}"
        self._attempt = hashlib.sha256(f"{_PROCESS}/{epoch}".encode()).hexdigest()[:8]
        name = f"{self._batch}_{self._attempt}_{int(time.time())}_{uuid.uuid4().hex[:6]}"
        self._schema = schema
        self._table = sql.Identifier(schema, name)
        self._merge = merge
        self._txids: list[str] = []
        self._rows = 0

    def create(self, connection: Connection) -> None:
        """Creates the table, checks the merge by EXPLAIN, and removes stages of dead attempts.

        Raises:
            InvalidArgument: if the rows cannot be merged into the target.
            PermissionDenied: if the role may not create the stage, or may not change the target.
        """
        with translated_refusals(connection, self._merge):
            self._remove_leftovers(connection)
            with needing(
                connection,
                "usage, create",
                f"schema {sql.Identifier(self._schema).as_string(connection)}",
                f"where rows for {self._merge.target.as_string(connection)} are staged",
                besides=" or pass as stage_schema a schema in which the role may create tables.",
            ):
                connection.execute(self._merge.unlogged(self._table))
            try:
                statement = self._merge.statement(self._table, [])
                connection.execute(sql.SQL("explain {}").format(statement))
            except psycopg.Error:
                connection.execute(sql.SQL("drop table {}").format(self._table))
                raise

    def fill(self, address: DatabaseAddress, frame: DataFrame) -> None:
        """Makes the executors COPY the rows, each task in its own transaction."""
        table, columns = self._table, self._merge.names

        def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with connect(address.resolve()) as connection:
                txid, rows = copy_batches(connection, table, columns, batches)
            yield pa.RecordBatch.from_pydict({"txid": [txid], "rows": [rows]})

        # The results of the accepted attempts. The rows of other attempts are ignored.
        with clear_executor_errors():
            written = map_in_tasks(frame, copy, "txid string, rows bigint").collect()
        self._txids = [row["txid"] for row in written]
        self._rows = sum(row["rows"] for row in written)

    def check(self, url: str) -> None:
        """Refuses the rows if the target would change a value.

        Raises:
            InvalidArgument: if it would, or if the key has a null that the index does not treat as
                equal to others.
            StagingLost: if another attempt removed the stage.
        """
        checks, key = self._merge.checks, self._merge.key
        if not checks or not self._rows:
            return
        with connect(url) as connection, translated_refusals(connection, self._merge):
            # The key first, because sums are computed by the key as the target has it.
            checked = [column for column in self._merge.columns if column.name in checks]
            for part in (
                [column for column in checked if column.name in key],
                [column for column in checked if column.name not in key],
            ):
                if not part or self._misfit(connection, *part) is None:
                    continue
                for column in part:
                    if found := self._misfit(connection, column):
                        target = self._merge.target.as_string(connection)
                        raise InvalidArgument(
                            f"column {column.name} of {target}, {column.type}, {found}",
                            _NULL_KEY_HINT if found == _NULL_KEY else _VALUE_HINT,
                        )

    def _misfit(self, connection: Connection, *columns: StagedColumn) -> str | None:
        """Returns a description of a value that its column cannot hold, or None."""
        try:
            with _stage_required(), connection.transaction():
                query = self._merge.misfit(
                    self._table, self._txids, [column.name for column in columns]
                )
                row = connection.execute(query).fetchone()
        except psycopg.DataError as error:
            return f"refuses a value: {error.diag.message_primary or error}"
        if row is None:
            return None
        return _NULL_KEY if row[0] is None else f"does not hold {row[0][:_SHOWN]}"

    def merge(self, connection: Connection) -> None:
        """Merges the rows into the target and drops the stage, in the caller's transaction.

        Raises:
            StagingLost: if the server crashed in between and lost the staged rows.
            InvalidArgument: if the target refuses the rows.
            TransactionOutdated: if the merge conflicted with another transaction.
        """
        with translated_refusals(connection, self._merge):
            self._check_complete(connection)
            connection.execute(self._merge.statement(self._table, self._txids))
            self._drop(connection, self._table)

    @contextmanager
    def dropped_on_failure(
        self, url: str, *, kept_on: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Drops the stage if the block fails, unless the error means that it will be repeated."""
        try:
            yield
        except kept_on:
            raise
        except Exception:
            # The block's error is raised. If the drop fails, the stage is removed a day later.
            with suppress(PgqueError, psycopg.Error), connect(url) as connection:
                self._drop(connection, self._table, wait=_SECONDS_FOR_TASKS)
            raise

    def _check_complete(self, connection: Connection) -> None:
        query = sql.SQL("select count(*) from {} where {}").format(
            self._table, written_by(self._txids)
        )
        with _stage_required():
            ((found,),) = connection.execute(query).fetchall()
        if found != self._rows:
            raise StagingLost(
                f"the stage holds {found} of {self._rows} rows",
                "The server crashed in between: run the batch again.",
            )

    def _remove_leftovers(self, connection: Connection) -> None:
        found = connection.execute(
            "select relname::text from pg_class where relnamespace = %s::regnamespace"
            " and relkind = 'r' and relname ~ %s"
            " and (starts_with(relname::text, %s) and split_part(relname, '_', 4) <> %s"
            "      or split_part(relname, '_', 5)::bigint < %s)",
            (
                sql.Identifier(self._schema).as_string(connection),
                f"^{_PREFIX}_[0-9a-f]{{12}}_[0-9a-f]{{8}}_[0-9]+_[0-9a-f]{{6}}$",
                f"{self._batch}_",
                self._attempt,
                int(time.time()) - _DAY,
            ),
        ).fetchall()
        for (name,) in found:
            self._drop(connection, sql.Identifier(self._schema, name))

    @staticmethod
    def _drop(connection: Connection, table: sql.Identifier, *, wait: int = 0) -> None:
        """Drops a stage, unless another role owns it or a task uses it for `wait` seconds."""
        try:
            with connection.transaction():
                lock = sql.SQL("lock table {} in access exclusive mode").format(table)
                if wait:
                    connection.execute(sql.SQL("set local lock_timeout = {}").format(wait * 1000))
                else:
                    lock += sql.SQL(" nowait")
                connection.execute(lock)
                connection.execute(sql.SQL("drop table {}").format(table))
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.UndefinedTable,
        ):
            pass


@contextmanager
def _stage_required() -> Iterator[None]:
    """Raises `StagingLost` if the stage does not exist."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise StagingLost(
            "the staged rows are gone",
            "Another attempt at the batch replaced them; run it again.",
        ) from error


@contextmanager
def translated_refusals(connection: Connection, merge: Merge) -> Iterator[None]:
    """Translates the server's errors about the target, the key or the rows."""
    target = merge.target.as_string(connection)
    try:
        with needing(connection, merge.rights, target, "where the rows of batches are merged"):
            yield
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
        raise TransactionOutdated(
            f"{merge.mode} into {target}: {error.diag.message_primary or error}",
            "Another transaction changed the same rows, and nothing was stored: run the batch "
            "again.",
        ) from error
    except (psycopg.ProgrammingError, psycopg.IntegrityError, psycopg.DataError) as error:
        key = f" by the key ({', '.join(merge.key)})" if merge.key else ""
        raise InvalidArgument(
            f"{merge.mode} into {target}{key}: {error.diag.message_primary or error}",
            _HINTS.get(error.sqlstate or "", error.diag.message_hint or ""),
        ) from error


_HINTS = {
    "21000": "Two rows have the same key: aggregate them first.",
    "42P10": "The key must be the columns of a primary key or unique index of the table.",
    "42P01": "Create the table first.",
    "3F000": "Create the schema first, such as by: create schema … authorization …;",
}
