"""Fixtures that most tests share: a real server, and a fresh database with the queue in it."""

import gc
import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest

from harness import leftovers
from pgque_dagster.spark.cluster import class_archive
from tests.support.runner.formats import spare_formats
from tests.support.runner.packages import is_installed
from tests.support.runner.processor_time import ProcessorTime
from tests.support.servers.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL_SQL = Path(__file__).parent.parent / "sql" / "pgque.sql"
SLOW_TEST_SECONDS = 3600

# Sparks of tests are short: optimizing their code costs more than it saves. Without the optimizing
# compiler, the default for code is 48 MB, which is full after some tests: code is compiled again.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
)

# pytest closes its folders to the user who runs the server for root.
os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")

# Folders whose tests start Spark or Dagster.
COSTLY = ("live", "dagster", "spark", "client", "demo")
ROOT = Path(__file__).parent
# DROP DATABASE sleeps for 100 ms if a session that was closed has not ended yet.
WAIT_FOR_SESSIONS = """
do $$ begin
    for i in 1 .. 25 loop
        exit when not exists (select from pg_stat_activity where datname = '{database}');
        perform pg_sleep(0.002);
        perform pg_stat_clear_snapshot();
    end loop;
end $$
"""

DROP_SLOTS = """
select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '{database}'
"""

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


NewDatabase = Callable[..., AbstractContextManager[str]]


class Server(Protocol):
    """What a test may ask of the server, whichever it is."""

    @property
    def url(self) -> str: ...

    def database_url(self, name: str) -> str: ...


def server_version() -> int:
    """The PostgreSQL that `make test PG=…` asks for."""
    return int(os.environ.get("PGQUE_TEST_PG") or 18)


def pytest_configure(config: pytest.Config) -> None:
    if not Path("/proc/self/stat").exists():
        return
    if not hasattr(config, "workerinput"):
        leftovers.end_with_this_process()
    config.pluginmanager.register(ProcessorTime(config))


# First, as to show where the signal came takes a second.
@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    """Ends the workers at once: each would first end its test, which may wait for Spark."""
    leftovers.end_started()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that need another server or program, and puts expensive files first."""
    spare_formats(items)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))
    items.sort(key=_cost_of_file)

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


def _seconds_of_files() -> dict[str, float]:
    """Returns the processor time of files of tests that take long."""
    lines = (ROOT.parent / "build" / "test_seconds.txt").read_text().splitlines()
    found = (line.rsplit(maxsplit=1) for line in lines)
    return {file: float(seconds) for file, seconds in found}


_SECONDS = _seconds_of_files()


def _cost_of_file(item: pytest.Item) -> tuple[bool, float, Path]:
    file = str(item.path.relative_to(ROOT.parent))
    # One worker runs all of tests/live, which share a Dagster.
    return not file.startswith("tests/live/"), -_SECONDS.get(file, 0), item.path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker a file at a time, in that order, so that all end at about the same time."""
    from xdist.scheduler import LoadScopeScheduling

    class FileByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # The tests of that folder share one Dagster.
            return "live" if nodeid.startswith("tests/live/") else nodeid.split("::")[0]

    config.option.loadscopereorder = False
    return FileByFile(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lets every Spark of these tests start from the archive of its classes."""
    # What collection has made stays, and is not garbage.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    folders = {item.path.relative_to(ROOT).parts[0] for item in session.items}
    if not folders.isdisjoint(COSTLY):
        # For the options of these JVMs.
        class_archive.make()
        class_archive.use()


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
def new_server(folder: Path | None = None, **settings: str) -> Iterator[Postgres]:
    """One more server of that version, for tests that need it to themselves, in a folder."""
    # A subscription's worker that ended begins again after that time, by default 5 seconds.
    settings = {"wal_level": "logical", "wal_retrieve_retry_interval": "50ms", **settings}
    # Not tmp_path_factory: pytest closes its folders to the user who runs the server for root.
    with (
        tempfile.TemporaryDirectory(prefix="pgque-test-", dir=folder) as place,
        Postgres(Path(place) / "postgres", server_version(), **settings) as running,
    ):
        yield running


def install(url: str) -> None:
    """Installs the queue in a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTALL_SQL.read_bytes())


@pytest.fixture(scope="session")
def new_database(server: Server) -> Iterator[NewDatabase]:
    """Makes databases: each is a copy of one that was filled by these functions, given its URL.

    Without functions, it has the queue installed.
    """
    # Open all the time: each new connection costs as much as a small test.
    with psycopg.connect(server.url, autocommit=True) as connection:

        @cache
        def template(*fills: Callable[[str], None]) -> str:
            name = f"template_{next(_numbers)}"
            before = template(*fills[:-1]) if fills[1:] else "template1"
            execute(connection, f"create database {name} template {before}")
            fills[-1](server.database_url(name))
            return name

        @contextmanager
        def copied(*fills: Callable[[str], None]) -> Iterator[str]:
            name, filled = f"t_{next(_numbers)}", template(*(fills or (install,)))
            # Copying files costs half of copying through the log; its checkpoints are cheap
            # without fsync.
            execute(connection, f"create database {name} template {filled} strategy file_copy")
            yield server.database_url(name)
            execute(connection, WAIT_FOR_SESSIONS.format(database=name))
            execute(connection, DROP_SLOTS.format(database=name))
            execute(connection, f"drop database {name} with (force)")

        yield copied


@pytest.fixture
def database_url(new_database: NewDatabase) -> Iterator[str]:
    """URL of a fresh database with the queue installed."""
    with new_database() as url:
        yield url


@pytest.fixture(scope="module")
def shared_database_url(new_database: NewDatabase) -> Iterator[str]:
    """The same for all tests of a file, which put the queue back themselves."""
    with new_database() as url:
        yield url


def execute(connection: psycopg.Connection, statement: str) -> None:
    connection.execute(statement.encode())


def administer(server: Server, statement: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        execute(connection, statement)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One Spark session for all tests."""
    from pyspark.sql import SparkSession

    os.environ["PGQUE_TEST_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "programs" / "spark_python.sh")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        # Else each expression asks Java for the line that made it, half of what Python does for it.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.python.daemon.module", "tests.support.spark.worker_daemon")
        .getOrCreate()
    )
    yield session
    session.stop()
