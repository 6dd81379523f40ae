"""Sessions of a PostgreSQL whose statements one scheduler runs, one after the other.

A statement either ends before the next one of any session begins, or it waits for a lock. While it
waits, other sessions go on. So the order of everything is the scheduler's, except among statements
that one release of a lock wakes up at once.
"""

import time
from collections.abc import Callable, Generator
from select import POLLIN, poll
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

_WAITS = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
# Seconds. Most statements end in that time, or in a few times what the session's earlier ones took,
# so that nobody has to ask what they wait for.
_ASK_AFTER = 0.001
_PATIENCE = 60


class Stuck(Exception):
    """A statement neither ends nor waits for a lock."""


class Settled:
    """What a task awaits that must not go on before all other sessions have come to rest."""

    def __await__(self) -> Generator["Settled", None, None]:
        yield self


class Paused:
    """What a task awaits to go on after so many steps of others."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __await__(self) -> Generator["Paused", None, None]:
        yield self


class Session:
    """A connection whose statements are sent, and looked at later."""

    def __init__(
        self, name: str, connect: Callable[[str], Connection], watch: Callable[[], Connection]
    ) -> None:
        self.name = name
        self._connect = connect
        self._watch = watch
        self.is_waiting = False  # Whether a statement was begun, and its result not taken.
        self._usual = 0.0
        self.db = connect(name)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.db.info.transaction_status != TransactionStatus.IDLE

    @property
    def pid(self) -> int:
        """The process of the server."""
        return self.db.info.backend_pid

    @property
    def is_done(self) -> bool:
        """Whether its statement ended, or none was begun."""
        return not self.is_waiting or self._ends_within(0)

    def _ends_within(self, seconds: float) -> bool:
        pgconn, ready = self.db.pgconn, poll()
        ready.register(pgconn.socket, POLLIN)
        until = time.monotonic() + seconds
        while pgconn.is_busy():
            if not ready.poll(max(0, until - time.monotonic()) * 1000):
                return False
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:  # The connection was lost, which the result says.
                break
        return True

    def run(self, sql: str, *params: object) -> "Statement":
        """Begins a statement, to be awaited; it returns its rows."""
        assert not self.is_waiting, f"{self.name} runs a statement already"
        query = psycopg.ClientCursor(self.db).mogrify(sql.encode(), params) if params else sql
        self.db.pgconn.send_query(query.encode())
        while self.db.pgconn.flush():
            pass
        self.is_waiting = True
        return Statement(self)

    async def value(self, sql: str, *params: object) -> Any:
        """Runs a statement that returns one value."""
        ((only,),) = await self.run(sql, *params)
        return only

    def waits(self) -> bool:
        """Says whether the statement waits for a lock, once it waits or has ended."""
        began = time.monotonic()
        ask_after = max(_ASK_AFTER, 4 * self._usual)
        while ask_after < _PATIENCE:
            if self._ends_within(ask_after):
                self._usual += (time.monotonic() - began - self._usual) / 10
                return False
            if self._watch().execute(_WAITS, [self.db.info.backend_pid]).fetchall() == [(True,)]:
                return True
            ask_after *= 1.5
        raise Stuck(f"{self.name} works for ever")

    def take(self) -> list[Row]:
        """Returns the rows of a statement that ended, or raises its error."""
        self.is_waiting = False
        rows: list[Row] = []
        error = None
        while (result := self.db.pgconn.get_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                error = error or error_from_result(result)
            elif result.status == ExecStatus.TUPLES_OK:
                loader = Transformer(self.db)
                loader.set_pgresult(result)
                rows = loader.load_rows(0, result.ntuples, tuple)
        if error:
            raise error
        return rows

    def cancel(self) -> None:
        """Cancels the statement that waits."""
        self._watch().execute("select pg_cancel_backend(%s)", [self.db.info.backend_pid])

    def terminate(self) -> None:
        """Ends the session as an administrator would. The next statement opens another one."""
        pid = [self.db.info.backend_pid]
        self._watch().execute("select pg_terminate_backend(%s)", pid)
        is_there = "select from pg_stat_activity where pid = %s"
        while self._watch().execute(is_there, pid).fetchall():
            time.sleep(0.001)

    def refresh(self) -> None:
        """Ends what is open, and connects again if the connection was lost."""
        self.is_waiting = False
        if not self.db.closed:
            try:
                self.db.execute("rollback")
                return
            except psycopg.OperationalError:
                self.db.close()
        self.db = self._connect(self.name)

    def close(self) -> None:
        """Closes the connection."""
        self.db.close()


class Statement:
    """A statement of a session that was begun."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __await__(self) -> Generator[Session, None, list[Row]]:
        if self._session.waits():
            while not self._session.is_done:
                yield self._session
        return self._session.take()
