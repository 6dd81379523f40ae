"""Measures consuming while a transaction holds an old snapshot: speed and dead rows.

There are 20 ticks and 1000 events per second, one consumer that cycles as fast as it can, and a
REPEATABLE READ transaction that stays open throughout.
"""

import threading
import time
from collections.abc import Callable
from statistics import median

from benchmarks.measure import Result
from benchmarks.servers import Connection, connect, value

_WINDOW = 10.0
# The number of windows to compare at the start and at the end; in a short run, half of all.
_WINDOWS = 6


def measure(url: str, *, seconds: float) -> list[Result]:
    """Returns the results with a held xmin horizon."""
    with connect(url) as connection:
        value(connection, "select pgque.create_queue('soak')")
        value(connection, "select pgque.set_queue_config('soak', 'ticker_max_lag', '0')")
        value(connection, "select pgque.register_consumer('soak', 'reader')")
    done = threading.Event()
    with connect(url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select txid_current_snapshot()")
        workers = [
            _every(0.05, url, done, lambda c: value(c, "select pgque.ticker('soak')")),
            _every(10, url, done, lambda c: value(c, "select pgque.maint()")),
            _every(0.1, url, done, _send),
        ]
        rates = _cycle(url, seconds)
        done.set()
        for worker in workers:
            worker.join()
        dead = _dead_tuples(url)
        holder.execute("rollback")
    # Medians of several windows, because single ones differ in their number of compactions.
    count = max(1, min(_WINDOWS, len(rates) // 2))
    first, last = median(rates[:count]), median(rates[-count:])
    return [
        Result(
            f"consumer cycles/s after {seconds / 60:.0f} min of held xmin",
            "at the start",
            last / first,
            ">=",
            0.9,
            f"{last:,.0f}/{first:,.0f} per s; "
            f"in windows of {_WINDOW:.0f} s {min(rates):,.0f} to {max(rates):,.0f}",
        ),
        *(
            Result(f"dead tuples then, {name}", "", count, "<=", target, "")
            for (name, count), target in zip(dead.items(), (0, 500, 200), strict=True)
        ),
    ]


def _send(connection: Connection) -> None:
    value(connection, "select pgque.send_batch('soak', 't', array_fill('x'::text, array[100]))")


def _every(
    period: float, url: str, done: threading.Event, work: Callable[[Connection], object]
) -> threading.Thread:
    def run() -> None:
        with connect(url) as connection:
            while not done.wait(period):
                work(connection)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _cycle(url: str, seconds: float) -> list[float]:
    """Claims and releases the consumer's batch as fast as possible, and acks it ten times a second.

    A claim and a release write two positions, as do next_batch and finish_batch, but they need no
    new tick.

    Returns:
        The cycles per second of busy time in each window. Claims that find no batch do not count,
        because their number depends on when ticks are made.
    """
    rates = []
    end = time.monotonic() + seconds
    acked = 0.0
    with connect(url) as connection:
        while time.monotonic() < end:
            cycles, busy = 0, 0.0
            window = time.monotonic()
            while (start := time.monotonic()) - window < _WINDOW:
                batch, epoch = connection.execute(
                    "select batch_id, epoch from pgque.claim_batch('soak', 'reader', 'bench')"
                ).fetchall()[0]
                if batch is None:
                    continue
                done = "release" if start - acked < 0.1 else "ack"
                value(connection, f"select pgque.{done}_batch(%s, 'bench', %s)", batch, epoch)
                acked = start if done == "ack" else acked
                cycles += 1
                busy += time.monotonic() - start
            rates.append(cycles / busy)
    return rates


def _dead_tuples(url: str) -> dict[str, float]:
    with connect(url) as connection:
        value(connection, "select pg_stat_clear_snapshot()")
        rows = connection.execute(
            "select case when relname like 'event_%%' then 'event tables' "
            "when relname like 'position_log%%' or relname like 'subscription%%' "
            "then 'subscription side' when relname like 'tick%%' then 'tick side' end as side, "
            "sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'pgque' group by 1"
        ).fetchall()
    dead = {side: float(count) for side, count in rows if side}
    return {side: dead[side] for side in ("event tables", "subscription side", "tick side")}
