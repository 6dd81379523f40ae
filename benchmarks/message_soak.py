"""Measures messages while a transaction holds an old snapshot: postgremq, then its rivals.

Each gets 1,000 messages a second. One consumer takes and finishes messages until there are none,
and adds up the time of the calls. They run one after another, because the dead rows of one would
cost the others processor and disk time.
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
_WINDOW = 10.0
# The number of windows to compare at the start and at the end; in a short run, half of all.
_WINDOWS = 6

_DEAD = {
    RIVALS[0].name: "schemaname = 'postgremq'",
    RIVALS[1].name: "schemaname = 'rival' and relname = 'q'",
    RIVALS[2].name: "schemaname = 'rival' and relname = 'plain'",
}


def measure(url: str, *, seconds: float) -> list[Result]:
    """Returns the results with a held xmin horizon; each measurement takes this many seconds."""
    prepare(url)
    return [_soak(url, rival, seconds) for rival in RIVALS]


def _soak(url: str, rival: Rival, seconds: float) -> Result:
    done = threading.Event()
    rates: list[float] = []
    with connect(url) as holder, connect(url) as connection:
        connection.prepare_threshold = 0
        holder.execute("begin isolation level repeatable read")
        holder.execute("select txid_current_snapshot()")
        threads = [_start(_publish, url, done, rival), _start(_maintain, url, done)]
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                rates.append(_window(connection, rival))
        finally:
            done.set()
            for thread in threads:
                thread.join()
        return _result(connection, rival, rates, seconds)


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


def _window(connection: Connection, rival: Rival) -> float:
    """Returns the messages finished per second of busy time."""
    taken, busy = 0, 0.0
    end = time.monotonic() + _WINDOW
    while (start := time.monotonic()) < end:
        count = rival.cycle(connection, _SIZE)
        if count == 0:
            time.sleep(0.01)
        else:
            taken += count
            busy += time.monotonic() - start
    return taken / busy


def _result(connection: Connection, rival: Rival, rates: list[float], seconds: float) -> Result:
    count = max(1, min(_WINDOWS, len(rates) // 2))
    first, last = median(rates[:count]), median(rates[-count:])
    value(connection, "select pg_stat_clear_snapshot()")
    dead = value(
        connection, "select sum(n_dead_tup) from pg_stat_user_tables where " + _DEAD[rival.name]
    )
    return Result(
        f"{rival.name}: messages/s after {seconds / 60:.0f} min of held xmin",
        "at the start",
        last / first,
        ">=",
        0.8 if rival is RIVALS[0] else None,
        f"{last:,.0f}/{first:,.0f}; {dead:,.0f} dead rows",
    )
