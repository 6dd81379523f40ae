"""PgQ's programs on the test's database, and Debian's server, which has PgQ's extension."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.addons.pgq_programs import SINK, Programs
from tests.support.queues.sql import Connection
from tests.support.servers.postgres import DEBIAN_VERSION, Postgres


@pytest.fixture(scope="session")
def debian() -> Iterator[Postgres]:
    with (
        TemporaryDirectory(prefix="pgque-test-") as folder,
        Postgres(Path(folder) / "postgres", DEBIAN_VERSION) as server,
    ):
        yield server


@pytest.fixture
def programs(tmp_path: Path, db: Connection, database_url: str) -> Iterator[Programs]:
    """Runs programs whose consumers note their events in the table `sink`."""
    db.execute(SINK.encode())
    running = Programs(tmp_path, database_url)
    yield running
    running.stop()
