"""Fixtures that most tests share: a real server, and a fresh database with the queue in it."""

import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.support.debian import DEBIAN_VERSION, DebianPostgres
from tests.support.programs import is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL_SQL = Path(__file__).parent.parent / "sql" / "pgque.sql"
TEMPLATE = "pgque_template"
SLOW_TEST_SECONDS = 3600
JDBC_JAR = Path("/usr/share/java/postgresql.jar")  # Debian's libpostgresql-jdbc-java

# Sparks of tests are short: optimizing their code costs more than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# pytest closes its folders to the user who runs the server for root.
os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 * 2**30  # of temporary files, more than all tests need at a time

_numbers = itertools.count(1)
_SPARK_TIMER = pytest.StashKey[threading.Timer]()


def _use_memory_for_temporary_files() -> None:
    """Puts temporary files in memory, unless TMPDIR is set: most of a small test is files."""
    if "TMPDIR" in os.environ or not _MEMORY.is_dir():
        return
    if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES and os.access(_MEMORY, os.W_OK):
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


_use_memory_for_temporary_files()


class Server(Protocol):
    """What a test may ask of the server, whichever it is."""

    @property
    def url(self) -> str: ...

    def database_url(self, name: str) -> str: ...


def server_version() -> int:
    """The PostgreSQL that `make test PG=…` asks for."""
    return int(os.environ.get("PGQUE_TEST_PG") or 18)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives slow tests more time, and leaves out those that need another server or program."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))

    def is_for_another(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("server")
        return mark is not None and mark.args[0] != server_version()

    def lacks_a_program(item: pytest.Item) -> bool:
        return not all(is_installed(mark.args[0]) for mark in item.iter_markers("program"))

    def is_left_out(item: pytest.Item) -> bool:
        return is_for_another(item) or lacks_a_program(item)

    others = [item for item in items if is_left_out(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not is_left_out(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Cancels Spark's jobs shortly before the time limit.

    The signal cannot end a test that waits for one: what it runs on its way out needs the thread's
    connection to the JVM, which is busy until the job ends, and out of step afterwards.
    """
    timer = threading.Timer(settings.timeout - 5, _cancel_spark_jobs, [item])
    timer.daemon = True
    item.stash[_SPARK_TIMER] = timer
    timer.start()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    if timer := item.stash.get(_SPARK_TIMER, None):
        timer.cancel()


def _cancel_spark_jobs(item: pytest.Item) -> None:
    if session := getattr(item, "funcargs", {}).get("spark"):
        session.sparkContext.cancelAllJobs()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of the version that PGQUE_TEST_PG names, for the whole session."""
    with new_server() as running:
        yield running


@contextmanager
def new_server() -> Iterator[EmbeddedPostgres | DebianPostgres]:
    """One more server of that version, for tests that need it to themselves."""
    version = server_version()
    # Not tmp_path_factory: pytest closes its folders to the user who runs the server for root.
    with tempfile.TemporaryDirectory(prefix="pgque-test-") as folder:
        data_dir = Path(folder) / "postgres"
        if version == DEBIAN_VERSION:
            with DebianPostgres(data_dir) as debian:
                yield debian
        else:
            with EmbeddedPostgres(data_dir, version=version) as embedded:
                _spare_the_disk(embedded)
                yield embedded


def _spare_the_disk(server: EmbeddedPostgres) -> None:
    """Turns fsync off: it is for crashes of the machine, and most of a small test's time."""
    administer(server, "alter system set fsync = off")
    administer(server, "select pg_reload_conf()")


@pytest.fixture(scope="session")
def template_database(server: Server) -> str:
    """Name of a database with the queue installed, to make copies of."""
    administer(server, f"create database {TEMPLATE}")
    with psycopg.connect(server.database_url(TEMPLATE), autocommit=True) as connection:
        connection.execute(INSTALL_SQL.read_bytes())
    return TEMPLATE


@pytest.fixture(scope="session")
def administration(server: Server) -> Iterator[psycopg.Connection]:
    """A superuser's connection, open all the time: each new one costs as much as a small test."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database_url(
    server: Server, template_database: str, administration: psycopg.Connection
) -> Iterator[str]:
    """URL of a fresh database with the queue installed."""
    name = f"t_{next(_numbers)}"
    # Copying files costs half of copying through the log; its checkpoints are cheap without fsync.
    execute(
        administration,
        f"create database {name} template {template_database} strategy file_copy",
    )
    yield server.database_url(name)
    execute(administration, f"drop database {name} with (force)")


def execute(connection: psycopg.Connection, statement: str) -> None:
    connection.execute(statement.encode())


def administer(server: Server, statement: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        execute(connection, statement)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One Spark session for all tests."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", str(JDBC_JAR) if JDBC_JAR.is_file() else "")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()
