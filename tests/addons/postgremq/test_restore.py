"""A dump and its restore keep every message, and what consumers hold."""

import subprocess
from pathlib import Path
from typing import Any

from tests.support.databases import empty_database
from tests.support.messages import ack, consume, drain, make_queue, publish, statistics
from tests.support.queues import Connection, connect

MANY = 150  # enough for several floors


def test_messages_survive_a_dump_and_a_restore(
    server: Any, db: Connection, database_url: str, tmp_path: Path
) -> None:
    make_queue(db)
    publish(db, *range(MANY))
    for claim in consume(db, limit=MANY - 5):
        ack(db, claim)
    (held,) = consume(db)
    file = tmp_path / "dump"
    pg_dump = [server.binary("pg_dump"), "--format=custom", f"--file={file}", database_url]
    subprocess.run(pg_dump, check=True)
    with empty_database(server) as url:
        subprocess.run([server.binary("pg_restore"), f"--dbname={url}", file], check=True)
        with connect(url) as restored:
            assert statistics(restored) == (4, 1, MANY - 5, MANY)
            publish(restored, -1)
            assert sorted(drain(restored)) == [-1, *range(MANY - 4, MANY)]
            ack(restored, held)
            assert statistics(restored) == (0, 0, MANY + 1, MANY + 1)
