"""PgQ's programs on the test's database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.addons.pgq_programs import SINK, Programs
from tests.support.queues.sql import Connection


@pytest.fixture
def programs(tmp_path: Path, db: Connection, database_url: str) -> Iterator[Programs]:
    """Runs programs whose consumers note their events in the table `sink`."""
    db.execute(SINK.encode())
    running = Programs(tmp_path, database_url)
    yield running
    running.stop()
