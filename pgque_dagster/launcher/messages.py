"""What the launcher and a warm process tell each other, a line of JSON each, over a socket."""

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

# The modification time in nanoseconds and the size of each source file.
Files = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Execute:
    """Asks for a run.

    Attributes:
        arguments: those of `dagster api execute_run`, as JSON.
    """

    run_id: str
    arguments: str


@dataclass(frozen=True)
class Ended:
    """A run is over and the process is free.

    Attributes:
        succeeded: whether the run did.
        memory: the resident bytes of the process and its children, such as Spark's JVM.
        files: the sources that the process has loaded.
    """

    succeeded: bool
    memory: int
    files: Files = field(default_factory=dict)


def send(channel: socket.socket, message: Execute | Ended) -> None:
    """Sends a message.

    Raises:
        OSError: if the other process is gone.
    """
    channel.sendall(json.dumps(asdict(message)).encode() + b"\n")


def requests(channel: socket.socket) -> Iterator[Execute]:
    """Yields the launcher's messages until it is gone."""
    for line in _lines(channel):
        yield Execute(**json.loads(line))


def answers(channel: socket.socket) -> Iterator[Ended]:
    """Yields a warm process's messages until it is gone."""
    for line in _lines(channel):
        read = json.loads(line)
        files = {path: (modified, size) for path, (modified, size) in read["files"].items()}
        yield Ended(read["succeeded"], read["memory"], files)


def _lines(channel: socket.socket) -> Iterator[bytes]:
    try:
        with channel.makefile("rb") as stream:
            # A line without its end is of a process that was killed while it wrote.
            yield from (line for line in stream if line.endswith(b"\n"))
    except OSError:
        return
