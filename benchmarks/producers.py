"""Measures sending one event against a plain INSERT, and sending many against COPY."""

import os
import re
import statistics
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
    """Returns the results for producers, with 1, 100 and 1,000 queues in the database."""
    results = []
    with connect(url) as connection:
        connection.execute(_PLAIN.encode())
        value(connection, "select pgq.create_queue('bench')")
        for queues in (1, 100, 1000):
            _make_queues(connection, queues)
            results += _single(url, queues, seconds=seconds, rounds=rounds)
            results += _batched(connection, queues, rounds=rounds)
            results.append(_first(url, queues))
        # The other measurements count the queues that they create.
        for number in range(1, queues + 1):
            value(connection, "select pgque.drop_queue(%s, true)", f"bench{number}")
        while value(connection, "select pgque.maint_event_tables()"):
            pass
    return results


def _make_queues(connection: Connection, queues: int) -> None:
    """Creates queues up to this number; the last one is measured."""
    for number in range(value(connection, "select count(*) from pgque.queue"), queues):
        value(connection, f"select pgque.create_queue('bench{number + 1}')")


def _single(url: str, queues: int, *, seconds: int, rounds: int) -> list[Result]:
    send = "send, 4 clients"
    rival = "C PgQ insert_event, 4 clients"
    statements = {
        "plain INSERT": f"insert into plain (ev_type, ev_data) values ('t', '{PAYLOAD}')",
        send: f"select pgque.send('bench{queues}', 't', '{PAYLOAD}')",
    }
    if queues == 1:
        statements[rival] = f"select pgq.insert_event('bench', 't', '{PAYLOAD}')"
    costs = medians(
        [Contender(name, pgbench(url, text, seconds)) for name, text in statements.items()],
        rounds,
    )
    plain = costs.pop("plain INSERT")
    return [
        Result(
            f"{name}, {_of(queues)}" if name == send else name,
            "plain INSERT",
            plain / cost,
            ">=",
            0.80 if name == send else None,
            f"{1 / cost:,.0f}/{1 / plain:,.0f} per s",
        )
        for name, cost in costs.items()
    ]


def _batched(connection: Connection, queues: int, *, rounds: int) -> list[Result]:
    queue = f"bench{queues}"
    table = value(connection, "select pgque.current_event_table(%s)", queue)
    # Both are encoded beforehand, so that this is not measured.
    rows = f"t\t{PAYLOAD}\n".encode() * BATCH
    payloads = [PAYLOAD] * BATCH
    array = Transformer(connection).get_dumper(payloads, PyFormat.BINARY).dump(payloads)
    send = prepared(connection, f"select pgque.send_batch('{queue}', 't', $1::text[])")

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
            f"{name} of {BATCH}, {_of(queues)}",
            f"COPY of {BATCH}",
            costs["copy"] / costs[key],
            ">=",
            target,
            f"{costs[key] * 1000:.1f}/{costs['copy'] * 1000:.1f} ms",
        )
        for name, key, target in (
            ("send_batch", "send_batch", 0.95),
            ("COPY into the event table", "copy_event_table", None),
        )
    ]


def _first(url: str, queues: int) -> Result:
    """Measures the first call of new connections."""
    costs = []
    for _ in range(21):
        with connect(url) as connection:
            value(connection, "select 1")
            call = f"select pgque.send('bench{queues}', 't', 'x')"
            costs.append(timed(lambda: value(connection, call)))  # noqa: B023
    milliseconds = statistics.median(costs) * 1000
    return Result(
        f"a new connection's first send, {_of(queues)}",
        "milliseconds",
        milliseconds,
        "<=",
        8,
        "",
    )


def _of(queues: int) -> str:
    return f"{queues:,} queues" if queues > 1 else "1 queue"


def pgbench(url: str, statement: str, seconds: int) -> Callable[[], float]:
    """Returns a function that runs a statement with 4 clients and returns the seconds per run."""

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
