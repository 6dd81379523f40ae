"""What a crash and a restore leave: every committed message, and floors that hide none."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.support.messages import ack, consume, drain, make_queue, publish, statistics
from tests.support.queues import Connection, connect, rows, value

MANY = 150  # enough for several floors


def test_messages_survive_a_dump_and_a_restore(
    server: Any,
    administration: psycopg.Connection,
    db: Connection,
    database_url: str,
    tmp_path: Path,
) -> None:
    make_queue(db)
    publish(db, *range(MANY))
    for claim in consume(db, limit=MANY - 5):
        ack(db, claim)
    (held,) = consume(db)
    file = tmp_path / "dump"
    pg_dump = [server.binary("pg_dump"), "--format=custom", f"--file={file}", database_url]
    subprocess.run(pg_dump, check=True)
    administration.execute("create database restored_messages")
    try:
        url = server.database_url("restored_messages")
        subprocess.run([server.binary("pg_restore"), f"--dbname={url}", file], check=True)
        with connect(url) as restored:
            assert statistics(restored) == (4, 1, MANY - 5, MANY)
            publish(restored, -1)
            assert sorted(drain(restored)) == [-1, *range(MANY - 4, MANY)]
            ack(restored, held)
            assert statistics(restored) == (0, 0, MANY + 1, MANY + 1)
    finally:
        administration.execute("drop database restored_messages with (force)")


def test_floor_of_another_cluster_is_not_used(
    db: Connection, another: Callable[[], Connection]
) -> None:
    make_queue(db)
    publish(db, *range(MANY))
    drain(db)
    # As after a restore into a cluster with lower transaction ids.
    db.execute("update postgremq.floor set new_txid = '9999999999', origin_id = gen_random_uuid()")
    publish(db, 1, 2)
    assert drain(db) == [1, 2]


def test_consumer_that_is_killed_loses_only_its_claims(db: Connection, database_url: str) -> None:
    make_queue(db)
    publish(db, 1, 2)
    victim = connect(database_url)
    (claim,) = consume(victim, vt=0)
    value(db, "select pg_terminate_backend(%s, 10000)", victim.info.backend_pid)
    victim.close()
    again, other = consume(db, limit=2)
    assert (again.id, again.attempts, other.payload) == (claim.id, 2, 2)
    rows(db, "select postgremq.release_message('q', %s, %s)", again.id, again.token)
