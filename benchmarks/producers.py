"""Measures sending one event against a plain INSERT, and sending many against COPY."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from psycopg.adapt import PyFormat, Transformer

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, prepared, value

PAYLOAD = '{"id": 1, "text": "' + "x" * 160 + '"}'
BATCH = 1000

# A table with the columns, defaults and index of an event table.
_PLAIN = """
create sequence plain_id_seq;
create table plain (like pgque.event_template) with (autovacuum_enabled = false);
alter table plain alter ev_id set default nextval('plain_id_seq'),
    alter ev_time set default now(), alter ev_txid set default pg_current_xact_id();
create index on plain (ev_txid);
"""


def measure(url: str, *, seconds: int, rounds: int) -> list[Result]:
    """Returns the results for producers."""
    with connect(url) as connection:
        connection.execute(_PLAIN.encode())
        value(connection, "select pgque.create_queue('bench')")
        value(connection, "select pgq.create_queue('bench')")
        function = value(connection, "select queue_data_pfx from pgque.queue") + "_insert"
        return [
            *_single(url, function, seconds=seconds, rounds=rounds),
            *_batched(connection, rounds=rounds),
        ]


def _single(url: str, function: str, *, seconds: int, rounds: int) -> list[Result]:
    statements = {
        "plain INSERT": f"insert into plain (ev_type, ev_data) values ('t', '{PAYLOAD}')",
        "the queue's insert function": f"select {function}('t', '{PAYLOAD}')",
        "send": f"select pgque.send('bench', 't', '{PAYLOAD}')",
        "C PgQ insert_event": f"select pgq.insert_event('bench', 't', '{PAYLOAD}')",
    }
    costs = medians(
        [Contender(name, pgbench(url, text, seconds)) for name, text in statements.items()],
        rounds,
    )
    plain = costs["plain INSERT"]
    targets = {"send": 0.65, "the queue's insert function": 0.80, "C PgQ insert_event": None}
    return [
        Result(
            f"{name}, single insert a transaction, 4 clients",
            "plain INSERT",
            plain / costs[name],
            ">=",
            target,
            f"{1 / costs[name]:,.0f} against {1 / plain:,.0f} transactions a second",
        )
        for name, target in targets.items()
    ]


def _batched(connection: Connection, *, rounds: int) -> list[Result]:
    table = value(connection, "select pgque.current_event_table('bench')")
    # Both are encoded before, so that Python's time for this is not measured.
    rows = f"t\t{PAYLOAD}\n".encode() * BATCH
    payloads = [PAYLOAD] * BATCH
    array = Transformer(connection).get_dumper(payloads, PyFormat.BINARY).dump(payloads)
    send = prepared(connection, "select pgque.send_batch('bench', 't', $1::text[])")

    def copy_into(table: str) -> None:
        with (
            connection.cursor() as cursor,
            cursor.copy(f"copy {table} (ev_type, ev_data) from stdin".encode()) as into,
        ):
            into.write(rows)

    costs = medians(
        [
            Contender("copy", lambda: timed(lambda: copy_into("plain"), 100)),
            Contender("send_batch", lambda: timed(lambda: send(array, binary=True), 100)),
            Contender("copy_event_table", lambda: timed(lambda: copy_into(table), 100)),
        ],
        rounds,
    )
    return [
        Result(
            f"{name} of {BATCH}",
            f"COPY of {BATCH}",
            costs["copy"] / costs[key],
            ">=",
            target,
            f"{costs[key] * 1000:.1f} against {costs['copy'] * 1000:.1f} ms",
        )
        for name, key, target in (
            ("send_batch", "send_batch", 0.90),
            ("COPY into the event table", "copy_event_table", None),
        )
    ]


def pgbench(url: str, statement: str, seconds: int) -> Callable[[], float]:
    """Returns a function that runs a statement by 4 clients, and returns its seconds per run."""

    def cost() -> float:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.sql"
            script.write_text(f"{statement};\n")
            command = [
                "/usr/lib/postgresql/15/bin/pgbench", "--no-vacuum", "--protocol=prepared",
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
        return 1 / float(found.group(1))

    return cost
