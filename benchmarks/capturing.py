"""Measures what statements cost on a table whose changes are captured."""

import statistics
import threading
import time

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import connect, value
from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay, end_relay
from pgque_dagster.client.relaying import Relaying

ROWS = 30_000
_SMALL = 10_000
_SINGLE = 300
# Microseconds and milliseconds, and a ratio.
_A_ROW, _A_STATEMENT, _BULK = 10, 0.3, 2
# For changes from the WAL: a ratio, changes a second, and seconds.
_FREE, _RATE, _DELAY = 1.05, 30_000, 0.3
_MOVED, _DELAYS = 30, 50
_COLUMNS = "(id int primary key, customer int, total numeric(12, 2), at timestamptz, note text)"
_KINDS = "plain", "captured", "row_trigger"
_INSERT = "insert into {} select n, n, n, now(), md5(n::text) from generate_series({}, {}) n"


def measure(url: str, *, rounds: int) -> list[Result]:
    """Measures statements of many rows and of one, beside a row trigger of PL/pgSQL.

    Args:
        url: a database with the queue installed.
        rounds: number of rounds after a warm-up.
    """
    with connect(url) as db:
        value(db, "select pgque.create_queue('capturing')")
        for kind in _KINDS:
            db.execute(f"create table {kind} {_COLUMNS}".encode())
        db.execute("select pgque.capture('captured', 'capturing')")
        db.execute(
            "create trigger changes after insert or update or delete on row_trigger"
            " for each row execute function pgque.jsontriga('capturing')"
        )

        def cost(kind: str, rows: int, statement: str) -> float:
            db.execute(f"truncate {kind}".encode())
            if statement == "insert":
                return timed(lambda: db.execute(_INSERT.format(kind, 1, rows).encode()))
            db.execute(_INSERT.format(kind, 1, rows).encode())
            return timed(lambda: db.execute(f"update {kind} set total = total + 1".encode()))

        def single(kind: str) -> float:
            db.execute(f"truncate {kind}".encode())
            numbers = iter(range(1, _SINGLE + 1))

            statement = f"insert into {kind} values (%s, 1, 1, now(), 'a note')".encode()

            def insert() -> None:
                db.execute(statement, (next(numbers),))

            return timed(insert, _SINGLE)

        results = []
        for statement in ("insert", "update"):
            found = medians(
                [Contender(kind, lambda k=kind, s=statement: cost(k, ROWS, s)) for kind in _KINDS],
                rounds,
            )
            added = {k: (found[k] - found["plain"]) / ROWS * 1e6 for k in _KINDS}
            results.append(
                Result(
                    f"capture: {statement} of {ROWS:,} rows, added µs a row",
                    "jsontriga",
                    added["captured"],
                    "<=",
                    _A_ROW,
                    f"{added['captured']:.1f}/{added['row_trigger']:.1f} µs",
                )
            )
        found = medians(
            [
                Contender(kind, lambda k=kind: cost(k, _SMALL, "update"))
                for kind in ("plain", "captured")
            ],
            rounds,
        )
        results.append(
            Result(
                f"capture: update of {_SMALL:,} rows, time",
                "the same without capture",
                found["captured"] / found["plain"],
                "<=",
                _BULK,
                f"{found['captured'] * 1e3:.0f}/{found['plain'] * 1e3:.0f} ms",
            )
        )
        found = medians([Contender(k, lambda k=k: single(k)) for k in _KINDS], rounds)
        added = {k: (found[k] - found["plain"]) * 1e3 for k in _KINDS}
        results.append(
            Result(
                "capture: insert of one row, added ms",
                "jsontriga",
                added["captured"],
                "<=",
                _A_STATEMENT,
                f"{added['captured']:.2f}/{added['row_trigger']:.2f} ms; "
                f"plain {found['plain'] * 1e3:.2f} ms",
            )
        )
    return results


def measure_relay(url: str, *, rounds: int) -> list[Result]:
    """Measures what capture from the WAL costs writers, and how fast a relay is.

    Args:
        url: a database with the queue installed, on a server with logical decoding.
        rounds: number of rounds after a warm-up.
    """
    with connect(url) as db:
        value(db, "select pgque.create_queue('relaying')")
        begin_relay(url, "relaying")
        for kind in ("unread", "relayed"):
            db.execute(f"create table {kind} {_COLUMNS}".encode())
            db.execute(_INSERT.format(kind, 1, _SMALL).encode())
        value(db, "select pgque.capture('relayed', 'relaying')")

        def update(kind: str) -> float:
            return timed(lambda: db.execute(f"update {kind} set total = total + 1".encode()))

        found = medians(
            [Contender(kind, lambda k=kind: update(k)) for kind in ("unread", "relayed")], rounds
        )
        with Relay.of(url, "relaying") as relay:
            relay.tick()
            for _ in range(_MOVED):
                update("relayed")
            began = time.perf_counter()
            rate = relay.move().events / (time.perf_counter() - began)
            relay.tick()
        delay = statistics.median(_delays(url))
        end_relay(url, "relaying")
    return [
        Result(
            f"capture from the WAL: update of {_SMALL:,} rows, time",
            "the same without capture",
            found["relayed"] / found["unread"],
            "<=",
            _FREE,
            f"{found['relayed'] * 1e3:.0f}/{found['unread'] * 1e3:.0f} ms",
        ),
        Result("relay: changes a second", "none", rate, ">=", _RATE, f"{rate:,.0f}"),
        Result("relay: from commit to event, s", "none", delay, "<=", _DELAY, f"{delay:.2f} s"),
    ]


def _delays(url: str) -> list[float]:
    """Updates a row repeatedly; returns how long each update took to become an event."""
    runner = Relaying(url, "relaying")
    thread = threading.Thread(target=runner.run)
    thread.start()
    found = []
    last = "select last_value from pgque.event_{}_id_seq"
    with connect(url) as db:
        number = value(db, "select queue_id from pgque.queue where queue_name = 'relaying'")
        for _ in range(_DELAYS):
            before = value(db, last.format(number))
            db.execute("update relayed set total = total + 1 where id = 1")
            began = time.perf_counter()
            while value(db, last.format(number)) == before:
                time.sleep(0.005)
            found.append(time.perf_counter() - began)
    runner.stop()
    thread.join()
    return found
