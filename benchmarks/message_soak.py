"""Measures messages while a transaction holds an old snapshot: postgremq beside its rivals.

Each of them gets 1,000 messages a second. One consumer visits them in turns, takes and finishes
messages of one until it is empty or its turn is over, and counts the time that the calls took. So
all are measured on the same machine in the same minute.
"""

import threading
import time
from collections.abc import Callable
from statistics import median

from benchmarks.measure import Result
from benchmarks.messages import RIVALS, Rival, prepare
from benchmarks.servers import Connection, connect, value

_A_SECOND = 1000
_SIZE = 10
_TURN = 0.5
_WINDOW = 10.0
# The number of windows at the start and at the end to compare; in a short run, half of all each.
_WINDOWS = 6

_DEAD = {
    RIVALS[0].name: "schemaname = 'postgremq'",
    RIVALS[1].name: "schemaname = 'rival' and relname = 'q'",
    RIVALS[2].name: "schemaname = 'rival' and relname = 'plain'",
}


def measure(url: str, *, seconds: float) -> list[Result]:
    """Returns the results with a held xmin horizon."""
    prepare(url)
    done = threading.Event()
    with connect(url) as holder, connect(url) as connection:
        connection.prepare_threshold = 0
        holder.execute("begin isolation level repeatable read")
        holder.execute("select txid_current_snapshot()")
        publishers = [_start(_publish, url, done, rival) for rival in RIVALS]
        threads = [*publishers, _start(_maintain, url, done)]
        rates: dict[str, list[float]] = {rival.name: [] for rival in RIVALS}
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                for name, rate in _window(connection).items():
                    rates[name].append(rate)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        results = [_result(connection, rival, rates[rival.name], seconds) for rival in RIVALS]
        holder.execute("rollback")
    return results


def _start(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


def _publish(url: str, done: threading.Event, rival: Rival) -> None:
    with connect(url) as connection:
        sent, start = 0, time.monotonic()
        while not done.wait(0.05):
            due = int((time.monotonic() - start) * _A_SECOND) - sent
            connection.execute(rival.send_many.encode(), [due])
            sent += due


def _maintain(url: str, done: threading.Event) -> None:
    with connect(url) as connection:
        while not done.wait(10):
            connection.execute("select pgque.maint()")


def _window(connection: Connection) -> dict[str, float]:
    """The messages per second of busy time that each of them finishes."""
    taken = {rival.name: 0 for rival in RIVALS}
    busy = {rival.name: 0.0 for rival in RIVALS}
    end = time.monotonic() + _WINDOW
    while time.monotonic() < end:
        for rival in RIVALS:
            turn = time.monotonic() + _TURN
            while (start := time.monotonic()) < turn:
                count = rival.cycle(connection, _SIZE)
                if count == 0:
                    break
                taken[rival.name] += count
                busy[rival.name] += time.monotonic() - start
        time.sleep(0.01)
    return {name: taken[name] / busy[name] for name in taken}


def _result(connection: Connection, rival: Rival, rates: list[float], seconds: float) -> Result:
    count = max(1, min(_WINDOWS, len(rates) // 2))
    first, last = median(rates[:count]), median(rates[-count:])
    value(connection, "select pg_stat_clear_snapshot()")
    dead = value(
        connection, "select sum(n_dead_tup) from pg_stat_user_tables where " + _DEAD[rival.name]
    )
    return Result(
        f"{rival.name}: messages a second after {seconds / 60:.0f} minutes of held xmin",
        "at the start",
        last / first,
        ">=",
        0.8 if rival is RIVALS[0] else None,
        f"{last:,.0f} against {first:,.0f}; {dead:,.0f} dead rows",
    )
