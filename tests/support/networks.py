"""A network between clients and a server that breaks, and is slow."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# mute: requests arrive, and answers are lost with their connection.
State = Literal["up", "slow", "mute", "down"]
_SLOW_SECONDS = 0.05


class Network:
    """Passes connections on to a server's socket. Set `state` at any time.

    Attributes:
        state: what happens to all connections, new and old ones.
    """

    def __init__(self, url: str) -> None:
        self.state: State = "up"
        parts = conninfo_to_dict(url)
        self._server = Path(f"{parts['host']}/.s.PGSQL.{parts['port']}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """The URL of a database of the server, through this network."""
        host, port = self._listener.getsockname()
        return make_conninfo(url, host=host, port=port)

    def close(self) -> None:
        """Ends all connections."""
        self.state = "down"
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(str(self._server))
                except OSError:
                    client.close()
                    continue
                for ends in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass, args=[*ends, ends[0] is server], daemon=True
                    ).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            source.settimeout(0.1)
            while self.state != "down":
                try:
                    read = source.recv(65536)
                except TimeoutError:
                    continue
                if not read or self.state == "down" or (is_answer and self.state == "mute"):
                    break
                if self.state == "slow":
                    time.sleep(_SLOW_SECONDS)
                target.sendall(read)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def network(url: str) -> Iterator[Network]:
    """A network in front of the server of a URL, which is up."""
    made = Network(url)
    try:
        yield made
    finally:
        made.close()
