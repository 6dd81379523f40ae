"""A relay in front of a server that drops notifications, as a pooler of transactions does."""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_NOTIFICATION = b"A"


@contextmanager
def relay_without_notifications(url: str) -> Iterator[str]:
    """Relays connections to a server on a Unix socket; yields the URL of the relay."""
    parts = conninfo_to_dict(url)
    name = f".s.PGSQL.{parts.get('port', 5432)}"
    server = f"{parts['host']}/{name}"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder) / name))
        listener.listen()
        threading.Thread(target=_accept, args=(listener, server), daemon=True).start()
        yield make_conninfo(url, host=folder)


def _accept(listener: socket.socket, server: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(server)
            for relay, pair in ((_copy, (client, upstream)), (_filter, (upstream, client))):
                threading.Thread(target=relay, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source, target:
        while data := source.recv(1 << 16):
            target.sendall(data)


def _filter(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source, target, source.makefile("rb") as messages:
        while kind := messages.read(1):
            length = messages.read(4)
            body = messages.read(int.from_bytes(length) - 4)
            if kind != _NOTIFICATION:
                target.sendall(kind + length + body)
