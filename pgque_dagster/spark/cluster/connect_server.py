"""A Spark Connect server as a child process, started again when it dies.

Sessions on it outlive runs, and all runs of a host share its JVM.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ...client.errors import PgqueError
from .java import check_java

logger = logging.getLogger("pgque.spark")

# A variable whose name Spark redacts where it shows variables.
SECRET_URL = "PGQUE_SECRET_URL"
DEFAULT_PORT = 15002

_FIRST_WAIT = 1.0
_LONGEST_WAIT = 30.0
# A server that has served for so long was in order: the next wait is the first one again.
_STEADY_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_STEP = 0.2
_KEPT_LINES = 200
_SHOWN_LINES = 3
_SAYS_WHY = re.compile(r"\b(Exception|Error)\b.*:|\bERROR\b|^Error")

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
# These would make the server's own Spark a client of another server.
_CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_DEFAULTS = {
    # Its pages have no password, and listen on all addresses of the host.
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    # A JVM without memory may hang; one that has ended is started again.
    "spark.driver.defaultJavaOptions": "-XX:+ExitOnOutOfMemoryError",
}


class ConnectServerFailed(PgqueError):
    """The Spark Connect server cannot be started as requested; the message says what to do."""


@dataclass(frozen=True)
class ServerOptions:
    """What a server is started with.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 for a free one.
        master: where Spark computes.
        memory: of the JVM, such as 2g; Spark's default, 1g, if it is None.
        conf: further settings of Spark.
        database_url: is given to the server's Python as the variable PGQUE_SECRET_URL, unless it
            is set already.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    master: str = "local[*]"
    memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    database_url: str | None = None


class ConnectServer:
    """Runs a Spark Connect server until `stop`.

    Args:
        options: what to start it with.
        on_ready: is called with the server's URL, each time that it begins to serve.

    Raises:
        ConnectServerFailed: if there is no Spark with Connect, or the port is in use.
        JavaMissing: if there is no Java for it.
    """

    def __init__(self, options: ServerOptions, on_ready: Callable[[str], None]) -> None:
        check_java()
        home = _spark_home()
        # Spark does not tell a port that it chose itself, and clients keep the URL after a restart.
        self._port = options.port or _free_port(options.host)
        self._host = options.host
        self._command = _command(home, options, self._port)
        self._environment = _environment(home, options)
        self._on_ready = on_ready
        self._stopped = threading.Event()
        _refuse_used_port(self._host, self._port)

    def stop(self) -> None:
        """Makes `run` end the server and return. Safe to call from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Runs the server until `stop`, and starts it again, with growing waits, when it dies.

        Raises:
            ConnectServerFailed: if it ends before it has served once.
        """
        has_served, wait = False, _FIRST_WAIT
        while not self._stopped.is_set():
            started = time.monotonic()
            with _running(self._command, self._environment) as process:
                if self._wait_until_ready(process):
                    has_served = True
                    process.is_told = True
                    self._on_ready(f"sc://{self._name()}:{self._port}")
                    self._wait_until_ended(process)
            if self._stopped.is_set():
                return
            if not has_served:
                raise ConnectServerFailed(
                    f"the Spark Connect server ended with status {process.status} before it served",
                    f"It said: {process.reason()}",
                )
            if time.monotonic() - started > _STEADY_SECONDS:
                wait = _FIRST_WAIT
            logger.warning(
                "The Spark Connect server ended with status %s. Starting it again in %.0f s.",
                process.status,
                wait,
            )
            self._stopped.wait(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    def _address(self) -> str:
        """Returns an address of this host on which the server listens."""
        return "127.0.0.1" if self._host == "0.0.0.0" else self._host

    def _name(self) -> str:
        """Returns the host for clients. PySpark sends a token without TLS to `localhost` alone."""
        return "localhost" if self._address() == "127.0.0.1" else self._host

    def _wait_until_ready(self, process: "_Server") -> bool:
        while process.is_alive and not self._stopped.is_set():
            with suppress(OSError):
                socket.create_connection((self._address(), self._port), timeout=_STEP).close()
                return True
            self._stopped.wait(_STEP)
        return False

    def _wait_until_ended(self, process: "_Server") -> None:
        while process.is_alive and not self._stopped.is_set():
            self._stopped.wait(_STEP)


class _Server:
    """The process of a server.

    Attributes:
        is_told: whether what it says is written to stderr, too. Until it serves, that is chatter.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.is_told = False
        self._process = process
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def reason(self) -> str:
        """Returns the lines in which Spark says why it ended, else its last ones."""
        self._reading.join(_GRACE_SECONDS)
        lines = [line.strip() for line in self._lines if line.strip()]
        telling = [line for line in lines if _SAYS_WHY.search(line)]
        return " | ".join(telling[:_SHOWN_LINES] or lines[-_SHOWN_LINES:])

    def end(self) -> None:
        """Asks the server to end, and kills what remains of it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if self.is_told:
                sys.stderr.write(line)


@contextmanager
def _running(command: list[str], environment: Mapping[str, str]) -> Iterator[_Server]:
    # Ctrl-C in the terminal reaches this process alone, which then ends the server.
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    server = _Server(process)
    try:
        yield server
    finally:
        server.end()


def _spark_home() -> Path:
    """Returns the folder of Spark: SPARK_HOME, or else PySpark's own.

    Raises:
        ConnectServerFailed: if there is none, or it has no Connect server.
    """
    way_out = "Run pip install 'pgque-dagster[connect]', or set SPARK_HOME to a Spark with Connect."
    found = os.environ.get("SPARK_HOME")
    if found is None:
        package = find_spec("pyspark")
        if package is None or package.origin is None:
            raise ConnectServerFailed("PySpark is not installed", way_out)
        found = str(Path(package.origin).parent)
    home = Path(found)
    if not (home / "bin" / "spark-submit").is_file():
        raise ConnectServerFailed(f"there is no bin/spark-submit in {home}", way_out)
    if not any((home / "jars").glob("spark-connect_*.jar")):
        raise ConnectServerFailed(f"there is no spark-connect jar in {home / 'jars'}", way_out)
    return home


def _command(home: Path, options: ServerOptions, port: int) -> list[str]:
    settings = {
        **_DEFAULTS,
        "spark.connect.grpc.binding.address": options.host,
        "spark.connect.grpc.binding.port": str(port),
        **options.conf,
    }
    memory = [] if options.memory is None else ["--driver-memory", options.memory]
    # Not sbin/start-connect-server.sh: PySpark 4.0 lacks it, and its shells pass no signals on.
    return [
        *(str(home / "bin" / "spark-submit"), "--master", options.master, *memory),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--name", "pgque spark-server", "--class", _CLASS, "spark-internal"),
    ]


def _environment(home: Path, options: ServerOptions) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name not in _CLIENT_VARIABLES}
    url = {SECRET_URL: options.database_url} if options.database_url else {}
    return {"PYSPARK_PYTHON": sys.executable, **url, **given, "SPARK_HOME": str(home)}


def _free_port(host: str) -> int:
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _refuse_used_port(host: str, port: int) -> None:
    with closing(socket.socket()) as probe:
        # As the server does, so that connections of one that has just ended do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConnectServerFailed(
                f"cannot listen on {host}:{port}: {error.strerror}",
                "Stop the program that listens there, or choose another --port (0 for a free one).",
            ) from error
