"""Measures the longest wait of a consumer while maintenance rotates long logs."""

import threading
import time
from pathlib import Path
from typing import LiteralString

from benchmarks.measure import Result
from benchmarks.servers import Connection, connect, prepared, value

_QUEUES = 1000
# A day of ticks every 100 ms, all still needed, because one consumer has read none of them.
_TICKS = 864_000
_TARGET_MS = 50
_MAKE_DUE: LiteralString = (
    "update pgque.log_rotation set rotated_at = rotated_at - interval '1 hour'"
)


def measure(url: str, *, seconds: int) -> list[Result]:
    """Polls and moves consumers of a thousand queues, first alone, then beside maintenance."""
    with connect(url) as connection:
        _prepare(connection)
    alone = _longest_poll(url, seconds)

    done = threading.Event()
    peaks: list[float] = []
    maintenance = threading.Thread(target=_maintain, args=(url, done, peaks))
    maintenance.start()
    beside = _longest_poll(url, seconds)
    done.set()
    maintenance.join()

    with connect(url) as connection:
        for number in range(_QUEUES):
            value(connection, "select pgque.drop_queue(%s, true)", f"stall_{number}")
    what = f"{_TICKS:,} ticks behind"
    return [
        Result(
            f"longest next_batch beside maintenance, {what}",
            "milliseconds",
            beside * 1000,
            "<=",
            _TARGET_MS,
            f"{beside * 1000:.1f} ms; {alone * 1000:.1f} ms without maintenance;"
            f" {len(peaks)} calls of maint()",
        ),
        Result(
            f"memory that maint() takes, {what}",
            "MB",
            max(peaks, default=0.0),
            "<=",
            None,
            f"{max(peaks, default=0.0):.0f} MB without shared buffers",
        ),
    ]


def _prepare(connection: Connection) -> None:
    for number in range(_QUEUES):
        queue = f"stall_{number}"
        value(connection, "select pgque.create_queue(%s)", queue)
        value(connection, "select pgque.register_consumer(%s, 'reader')", queue)
    # The ticks of a queue without consumers are not needed. Without them the log would not rotate:
    # it is copied when that leaves more ticks behind than it copies.
    value(connection, "select pgque.unregister_consumer('stall_2', 'reader')")
    for queue, ticks in (("stall_0", _TICKS), ("stall_2", _TICKS + 10_000)):
        connection.execute(
            "insert into pgque.tick_log (tick_queue, tick_id, tick_time, tick_snapshot,"
            " tick_event_seq, half) select t.tick_queue, t.tick_id + n, t.tick_time,"
            " t.tick_snapshot, t.tick_event_seq, t.half"
            " from pgque.tick_log t, generate_series(1, %s) n where t.tick_queue ="
            " (select q.queue_id from pgque.queue q where q.queue_name = %s)",
            (ticks, queue),
        )


def _longest_poll(url: str, seconds: int) -> float:
    """Returns the seconds of the longest next_batch call on any queue but the first."""
    longest = 0.0
    with connect(url) as connection:
        polls = [
            prepared(connection, f"select pgque.next_batch('stall_{number}', 'reader')")  # type: ignore[arg-type]
            for number in range(1, _QUEUES, 20)
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for number, poll in enumerate(polls):
                start = time.perf_counter()
                batch = poll().get_value(0, 0)
                longest = max(longest, time.perf_counter() - start)
                if batch is not None:
                    value(connection, "select pgque.finish_batch(%s)", int(batch))
                elif number == 0:
                    value(connection, "select pgque.force_tick('stall_1')")
                    value(connection, "select pgque.ticker()")
    return longest


def _maintain(url: str, done: threading.Event, peaks: list[float]) -> None:
    """Rotates the logs whenever possible, and records the memory of the server's process."""
    with connect(url) as connection:
        process = value(connection, "select pg_backend_pid()")
        while not done.is_set():
            connection.execute(_MAKE_DUE)
            value(connection, "select pgque.maint()")
            peaks.append(_own_megabytes(process))


def _own_megabytes(process: int) -> float:
    """Returns the resident memory of a process, in MB, without shared memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["RssAnon"].split()[0]) / 1000
