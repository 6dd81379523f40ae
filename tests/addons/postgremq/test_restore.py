"""A dump and its restore keep every message, and what consumers hold."""

from pathlib import Path
from typing import Any

from tests.support.addons.messages import ack, consume, drain, publish, statistics
from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import empty_database
from tests.support.servers.dumps import dump, restore

MANY = 150  # enough for several floors


def test_messages_survive_a_dump_and_a_restore(
    server: Any, q: Connection, database_url: str, tmp_path: Path
) -> None:
    publish(q, *range(MANY))
    for claim in consume(q, limit=MANY - 5):
        ack(q, claim)
    (held,) = consume(q)
    file = tmp_path / "dump"
    dump(server, database_url, file)
    with empty_database(server) as url:
        restore(server, file, url)
        with connect(url) as restored:
            assert statistics(restored) == (4, 1, MANY - 5, MANY)
            publish(restored, -1)
            assert sorted(drain(restored)) == [-1, *range(MANY - 4, MANY)]
            ack(restored, held)
            assert statistics(restored) == (0, 0, MANY + 1, MANY + 1)
