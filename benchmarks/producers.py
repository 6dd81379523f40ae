"""What sending costs beside a plain INSERT, and sending many beside COPY."""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from benchmarks.measure import Contender, Ratio, compare
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres

PAYLOAD = '{"id": 1, "text": "' + "x" * 160 + '"}'
BATCH = 1000

# The same shape, defaults and index as an event table.
PLAIN_TABLE = """
create sequence plain_id_seq;
create table plain (like pgque.event_template) with (autovacuum_enabled = false);
alter table plain alter ev_id set default nextval('plain_id_seq'),
    alter ev_time set default now(), alter ev_txid set default pg_current_xact_id();
create index on plain (ev_txid);
"""


def prepare(url: str) -> str:
    """Creates the queue `bench` and the table `plain`; returns the queue's insert function."""
    with Client(url) as client, client.transaction() as connection:
        client.create_queue("bench")
        connection.execute(PLAIN_TABLE)
        rows = connection.execute("select queue_data_pfx from pgque.queue").fetchall()
    return f"{rows[0][0]}_insert"


def single(server: EmbeddedPostgres, url: str, *, seconds: int, rounds: int) -> list[Ratio]:
    """One insert a transaction, 4 clients."""
    function = prepare(url)
    statements = {
        "plain INSERT": f"insert into plain (ev_type, ev_data) values ('t', '{PAYLOAD}')",
        "the queue's insert function": f"select {function}('t', '{PAYLOAD}')",
        "send": f"select pgque.send('bench', 't', '{PAYLOAD}')",
        "insert_event": f"select pgque.insert_event('bench', 't', '{PAYLOAD}')",
    }
    limit, *contenders = (
        Contender(name, _pgbench(server, url, statement, seconds))
        for name, statement in statements.items()
    )
    return compare(limit, contenders, rounds=rounds)


def batched(url: str, *, seconds: int, rounds: int) -> list[Ratio]:
    """A thousand events a transaction, one connection."""
    payloads = [PAYLOAD] * BATCH
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")

        def copy(table: str) -> Callable[[], None]:
            def run() -> None:
                with (
                    connection.transaction(),
                    connection.cursor() as cursor,
                    cursor.copy(f"copy {table} (ev_type, ev_data) from stdin".encode()) as into,
                ):
                    for payload in payloads:
                        into.write_row(("t", payload))

            return run

        def send_batch() -> None:
            connection.execute(
                "select pgque.send_batch('bench', 't', %b::text[])", (payloads,), prepare=True
            )

        return compare(
            Contender("COPY", _repeated(copy("plain"), seconds)),
            [
                Contender("send_batch", _repeated(send_batch, seconds)),
                Contender("COPY into the event table", _repeated(copy(_table(url)), seconds)),
            ],
            rounds=rounds,
        )


def _table(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.execute("select pgque.current_event_table('bench')").fetchall()[0][0])


def _repeated(run: Callable[[], None], seconds: int) -> Callable[[], float]:
    def rate() -> float:
        start = time.perf_counter()
        events = 0
        while time.perf_counter() - start < seconds:
            run()
            events += BATCH
        return events / (time.perf_counter() - start)

    return rate


def _pgbench(
    server: EmbeddedPostgres, url: str, statement: str, seconds: int
) -> Callable[[], float]:
    def rate() -> float:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.sql"
            script.write_text(f"{statement};\n")
            command = [
                str(server.binary("pgbench")), "--no-vacuum", "--protocol=prepared",
                "--client=4", "--jobs=2", f"--time={seconds}", f"--file={script}", url,
            ]  # fmt: skip
            answer = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PGOPTIONS": "-c synchronous_commit=off"},
            )
        found = re.search(r"tps = ([\d.]+)", answer.stdout)
        assert found, answer.stdout
        return float(found.group(1))

    return rate
