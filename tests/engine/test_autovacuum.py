"""Autovacuum may take hours over a large table; rotation and compaction do not wait for it."""

from collections.abc import Iterator

import pytest

from tests.conftest import INSTALL_SQL, new_server
from tests.support.queues.sql import Connection, connect
from tests.support.servers.standbys import wait_for

SETTINGS = {
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_cost_delay": "100",
    "autovacuum_vacuum_cost_limit": "1",
}
IS_AT_WORK = """
    select exists (select from pg_stat_activity
                   where backend_type = 'autovacuum worker' and datname = current_database()
                     and backend_xmin is not null)
"""


@pytest.fixture
def db() -> Iterator[Connection]:
    """A database where autovacuum is busy with a table for the whole test."""
    with new_server() as server, connect(server.url) as connection:
        connection.execute(INSTALL_SQL.read_bytes())
        for name, setting in SETTINGS.items():
            connection.execute(f"alter system set {name} = '{setting}'".encode())
        connection.execute("select pg_reload_conf()")
        connection.execute(
            "create table large with (autovacuum_analyze_threshold = 0) as"
            " select repeat('x', 1000) as text from generate_series(1, 100000)"
        )
        connection.execute("delete from large")
        wait_for(connection, IS_AT_WORK)
        yield connection


def test_rotation_empties_the_tables_meanwhile(q: Connection) -> None:
    q.publish("a")
    q.drain()
    done = [q.rotate() for _ in range(3)]
    assert q.execute(IS_AT_WORK).fetchone() == (True,)
    assert (done, q.stored_payloads()) == ([1, 1, 1], set())
