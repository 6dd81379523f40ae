"""Measures whether a day changes anything, in 24 compressed hours: `make bench-day`.

Ticks come every 100 ms, and tables are rotated each minute, which is an hour of this day. 1,000
events are sent per second; one consumer reads them when notified, another one every second.
Prints the last hour beside the first one, as a Markdown table; `--write` puts it into
docs/benchmarks.md, with a picture of all hours.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import psycopg

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.measure import Result, to_markdown, write_section
from benchmarks.servers import connect, value
from harness.leftovers import end_with_this_process
from pgque_dagster import installer
from pgque_dagster.client import Ticker
from pgque_dagster.embedded import EmbeddedPostgres

_DOCS = Path(__file__).parent.parent / "docs"
_HOURS = 24
# By then, each of a queue's tables and each half of the logs has been filled and truncated.
_WARM_UP_HOURS = 5
_WITHIN = 1.05
_RATE = "events read"
# Ten times as often as ticks, so that events wait for any part of a tick's period.
_PERIOD = 0.01
_EVENTS_A_PERIOD = 10
_DEAD_ROWS = "dead rows, at most"
_MOST_DEAD_ROWS = 200  # for all tables; autovacuum's threshold is 50 for each

_SIZE = """\
select sum(pg_total_relation_size(c.oid)) / 1e6
from pg_class c
where c.relnamespace = 'pgque'::regnamespace and c.relkind = 'r'
"""
_DEAD = "select sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'pgque'"


@dataclass
class Hour:
    """The measurements of an hour; times are in milliseconds, sizes in megabytes."""

    sends: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    events: int = 0
    size: float = 0
    dead: float = 0

    def figures(self) -> dict[str, float]:
        """The figures to compare with another hour's."""
        p99 = statistics.quantiles(self.latencies, n=100)[98]
        return {
            "send to delivery, p50 (ms)": statistics.median(self.latencies),
            "send to delivery, p99 (ms)": p99,
            "send_batch of 10 events (ms)": statistics.median(self.sends),
            "next_batch, read and finish_batch (ms)": statistics.median(self.cycles),
            _RATE: self.events,
            "size of tables and indexes (MB)": self.size,
            _DEAD_ROWS: self.dead,
        }


class Day:
    """The hours so far; new measurements go into the last one."""

    def __init__(self) -> None:
        self.hours = [Hour()]

    @property
    def now(self) -> Hour:
        return self.hours[-1]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hour", type=float, default=60, help="seconds of a compressed hour")
    parser.add_argument("--write", action="store_true", help="write into docs/")
    options = parser.parse_args()
    os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")
    with (
        tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres") as server,
    ):
        installer.install(server.url)
        hours = [each.figures() for each in measure(server.url, options.hour)[_WARM_UP_HOURS:]]
    table = to_markdown(results(hours))
    print(table)
    if options.write:
        draw(hours, _DOCS / "images" / "day.png")
        write_section(_DOCS / "benchmarks.md", "day", table)


def measure(url: str, seconds: float) -> list[Hour]:
    """Returns the hours, which last this many seconds, without those of the warm-up."""
    with connect(url) as db:
        value(db, "select pgque.create_queue('day')")
        for option, to in {"rotation_period": f"{seconds} seconds", "ticker_max_lag": "0"}.items():
            value(db, "select pgque.set_queue_config('day', %s, %s)", option, to)
        db.execute("update pgque.config set metadata_rotation_period = %s", [f"{seconds} seconds"])
        for consumer in ("reader", "slow"):
            value(db, "select pgque.register_consumer('day', %s)", consumer)
    day, ticker = Day(), Ticker(url)
    with (
        _beside(lambda _: ticker.run(), ticker.stop),
        _every(_PERIOD, url, lambda db: _send(db, day)),
        _every(1, url, _consume_all),
        _every(1, url, lambda db: _look(db, day)),
        _beside(lambda done: _read(url, day, done)),
    ):
        ends_at = time.monotonic()
        for number in range(_WARM_UP_HOURS + _HOURS):
            ends_at += seconds
            time.sleep(ends_at - time.monotonic())
            print(f"hour {number + 1 - _WARM_UP_HOURS}: {day.now.figures()}", flush=True)
            day.hours.append(Hour())
    return day.hours[:-1]


@contextmanager
def _beside(
    work: Callable[[threading.Event], object], stop: Callable[[], object] = lambda: None
) -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=work, args=[done])
    thread.start()
    try:
        yield
    finally:
        done.set()
        stop()
        thread.join()


def _every(
    period: float, url: str, work: Callable[[psycopg.Connection], object]
) -> AbstractContextManager[None]:
    def run(done: threading.Event) -> None:
        with connect(url) as db:
            due = time.monotonic()
            while not done.wait(max(0.0, due - time.monotonic())):
                due += period
                work(db)

    return _beside(run)


def _send(db: psycopg.Connection, day: Day) -> None:
    begun = time.time()
    payloads = [str(begun)] * _EVENTS_A_PERIOD
    value(db, "select count(*) from pgque.send_batch('day', 't', %s)", payloads)
    day.now.sends.append(1000 * (time.time() - begun))


def _look(db: psycopg.Connection, day: Day) -> None:
    day.now.size = max(day.now.size, float(value(db, _SIZE)))
    day.now.dead = max(day.now.dead, float(value(db, _DEAD)))


def _read(url: str, day: Day, done: threading.Event) -> None:
    with connect(url) as db, psycopg.connect(url, autocommit=True) as listener:
        listener.execute('listen "pgque_day"')
        while not done.is_set():
            list(listener.notifies(timeout=1, stop_after=1))
            while True:
                begun = time.monotonic()
                sent = _consume(db, "reader")
                if sent is None:
                    break
                now = time.time()
                day.now.cycles.append(1000 * (time.monotonic() - begun))
                day.now.latencies += [1000 * (now - float(each)) for each in sent]
                day.now.events += len(sent)


def _consume(db: psycopg.Connection, consumer: str) -> list[str] | None:
    """Reads the next batch; returns the payloads, or None without a batch."""
    batch = value(db, "select pgque.next_batch('day', %s)", consumer)
    if batch is None:
        return None
    rows = db.execute("select ev_data from pgque.get_batch_events(%s)", [batch]).fetchall()
    value(db, "select pgque.finish_batch(%s)", batch)
    return [data for (data,) in rows]


def _consume_all(db: psycopg.Connection) -> None:
    while _consume(db, "slow") is not None:
        pass


def results(hours: list[dict[str, float]]) -> list[Result]:
    """Compares the last hour with the first one."""
    return [_result(name, [hour[name] for hour in hours]) for name in hours[0]]


def _result(name: str, figures: list[float]) -> Result:
    first, last = figures[0], figures[-1]
    detail = f"{last:,.2f}/{first:,.2f}; {min(figures):,.2f} to {max(figures):,.2f}"
    if name == _DEAD_ROWS:
        return Result(name, "", last, "<=", _MOST_DEAD_ROWS, detail)
    if name == _RATE:
        return Result(name, "hour 1", last / first, ">=", 1 / _WITHIN, detail)
    return Result(name, "hour 1", last / first, "<=", _WITHIN, detail)


def draw(hours: list[dict[str, float]], path: Path) -> None:
    """Draws each figure over the hours, from 0 on."""
    figure, grid = pyplot.subplots(len(hours[0]), figsize=(8, 1.5 * len(hours[0])), sharex=True)
    for axes, name in zip(grid, hours[0], strict=True):
        axes.plot(range(1, len(hours) + 1), [hour[name] for hour in hours], color="#2a9d8f")
        axes.set_ylim(bottom=0, top=1.3 * max(hour[name] for hour in hours) or 1)
        axes.set_title(name, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
    grid[-1].set_xlabel("compressed hour")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    end_with_this_process()
    main()
