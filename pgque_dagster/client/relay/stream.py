"""The changes of a replication slot, as the server streams them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from select import select
from struct import Struct
from time import monotonic, sleep

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from ..connection import connect
from ..errors import ConnectionFailed, translated
from ..rights import Connection

# Makes values print as in triggers, and overrides the time limits of the role and the database.
_SETTINGS = """
select pgque.capture_settings()
union all
select format('set %I = 0', name) from pg_settings
where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout')
"""
_START = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})")
_DATA, _ALIVE = Struct(">cqqq"), Struct(">cqqB")
_STATUS = Struct(">cqqqqB")
_BEGIN, _COMMIT = Struct(">cq"), Struct(">cBqq")
_PAUSE = 0.005
# A session that was killed may still use the slot.
_IN_USE_SECONDS = 15


@contextmanager
def session(url: str) -> Iterator[Connection]:
    """Opens a connection that prints values as triggers do."""
    with closing(connect(url)) as connection, translated():
        for (setting,) in connection.execute(_SETTINGS).fetchall():
            connection.execute(setting.encode())
        yield connection


class Stream:
    """The messages of a slot about the transactions whose commit begins at a position or later."""

    def __init__(self, connection: Connection, position: int) -> None:
        self._server = connection.pgconn
        self._confirmed, self._held = position, b""

    @staticmethod
    def of(connection: Connection, publication: str, slot: str, position: int) -> "Stream":
        """Begins to stream, once no other session uses the slot."""
        start = _START.format(sql.Identifier(slot), sql.SQL(lsn(position)), publication)
        ends = monotonic() + _IN_USE_SECONDS
        while True:
            result = connection.pgconn.exec_(start.as_bytes(connection))
            if result.status == ExecStatus.COPY_BOTH:
                return Stream(connection, position)
            error = psycopg.errors.error_from_result(result)
            if not isinstance(error, psycopg.errors.ObjectInUse) or monotonic() > ends:
                raise error
            sleep(_PAUSE)

    def until(self, position: int) -> Iterator[bytes]:
        """Yields the messages of the transactions whose commit begins before a position."""
        while True:
            message, self._held = self._held or self._next(), b""
            if message[:1] == b"k":
                if _ALIVE.unpack(message)[1] >= position:
                    return
                sleep(_PAUSE)
                self._report(asks=True)
            elif message[:1] == b"B" and _BEGIN.unpack_from(message)[1] >= position:
                self._held = message
                return
            else:
                yield message
                if message[:1] == b"C" and _COMMIT.unpack_from(message)[3] >= position:
                    return

    def confirm(self, position: int) -> None:
        """Allows the server to discard changes before a position."""
        self._confirmed = position
        self._report(asks=False)

    def _next(self) -> bytes:
        """Returns the next message of the plugin, or how far the server has read."""
        asked = False
        while True:
            size, data = self._server.get_copy_data(1)
            if size > 0:
                message = bytes(data)
                if message[:1] == b"w":
                    return message[_DATA.size :]
                if asked:
                    return message
                if message[-1]:
                    self._report(asks=False)
            elif size < 0:
                raise ConnectionFailed("the server ended the stream of changes")
            else:
                if not asked:
                    asked = True
                    self._report(asks=True)
                select([self._server.socket], [], [])
                self._server.consume_input()

    def _report(self, *, asks: bool) -> None:
        status = _STATUS.pack(b"r", *[self._confirmed] * 3, 0, asks)
        self._server.put_copy_data(status)
        self._server.flush()


def lsn(position: int) -> str:
    """Returns a position in the WAL as PostgreSQL prints it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
