"""A network between clients and a server that breaks, and is slow."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Literal
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# mute: requests arrive, and answers are lost with their connection.
State = Literal["up", "slow", "mute", "down"]
_SLOW_SECONDS = 0.05
# Where the server listens: the path of a socket, or a host and a port.
_Address = str | tuple[str | None, int | None]


class Network:
    """Passes connections on to a server. Set `state` at any time.

    It has a process of its own: some clients keep Python's lock while they wait for an answer.

    Args:
        url: of a database, whose server has a socket in a folder, or of an HTTP server.
    """

    def __init__(self, url: str) -> None:
        if _is_http(url):
            found = urlsplit(url)
            server: _Address = (found.hostname, found.port)
        else:
            parts = conninfo_to_dict(url)
            server = f"{parts['host']}/.s.PGSQL.{parts['port']}"
        context = get_context("spawn")
        self._orders, orders = context.Pipe()
        self._process = context.Process(target=_relay, args=(server, orders), daemon=True)
        self._process.start()
        self._host, self._port = self._orders.recv()
        self._state: State = "up"

    @property
    def state(self) -> State:
        """What happens to all connections, new and old ones."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._orders.send(state)
        self._orders.recv()
        self._state = state

    def url(self, url: str) -> str:
        """The URL of a database of the server, or of the HTTP server, through this network."""
        if _is_http(url):
            return f"http://{self._host}:{self._port}"
        return make_conninfo(url, host=self._host, port=self._port)

    def close(self) -> None:
        """Ends all connections."""
        self._process.kill()
        self._process.join()


def _is_http(url: str) -> bool:
    return url.startswith("http:")


def _relay(server: _Address, orders: Connection) -> None:
    """Passes connections on, in the states that it is told, until the other process ends."""
    relay = _Relay(server)
    orders.send(relay.listener.getsockname())
    with suppress(EOFError):
        while True:
            relay.state = orders.recv()
            orders.send(None)


class _Relay:
    def __init__(self, server: _Address) -> None:
        self.state: State = "up"
        self._server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                is_path = isinstance(self._server, str)
                server = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
                try:
                    server.connect(self._server)
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
