"""Measures the time from send to delivery: to a loop of SQL, and to a Consumer's handler."""

import statistics
import threading
import time
from collections.abc import Callable

import psycopg

from benchmarks.measure import Result
from benchmarks.servers import connect, value
from pgque_dagster.client import Consumer, Message, Ticker

_PERIOD = 0.1
_EVENTS_A_SECOND = 100
# Half a period until the tick, and 10 ms from there to the handler.
_WAKE_UP = _PERIOD / 2 + 0.01


def measure(url: str, *, seconds: int) -> list[Result]:
    """Sends 100 events per second to a consumer that waits for NOTIFY."""
    with connect(url) as connection:
        value(connection, "select pgque.create_queue('latency')")
        value(connection, "select pgque.set_queue_config('latency', 'ticker_max_lag', '0')")
    read, handled = (_latencies(url, seconds, consume) for consume in (_consume, _handle))
    return [
        *(
            Result(
                f"delivery latency, tick every 100 ms, 100 events/s: p{rank}",
                "the period",
                read[rank - 1] / _PERIOD,
                "<=",
                target,
                f"{read[rank - 1] * 1000:.0f} ms",
            )
            for rank, target in ((50, 0.55), (99, 1.1))
        ),
        *(
            Result(
                f"the same to a Consumer's handler: p{rank}",
                "half the period and 10 ms",
                handled[rank - 1] / _WAKE_UP,
                "<=",
                target,
                f"{handled[rank - 1] * 1000:.0f} ms",
            )
            for rank, target in ((50, 1), (99, None))
        ),
    ]


def _latencies(url: str, seconds: int, consume: Callable[[str, int], list[float]]) -> list[float]:
    """Returns the percentiles, in seconds."""
    ticker = Ticker(url)
    done = threading.Event()
    threads = [
        threading.Thread(target=ticker.run),
        threading.Thread(target=_produce, args=(url, done)),
    ]
    for thread in threads:
        thread.start()
    latencies = consume(url, seconds)
    done.set()
    ticker.stop()
    for thread in threads:
        thread.join()
    return statistics.quantiles(latencies, n=100)


def _produce(url: str, done: threading.Event) -> None:
    with connect(url) as connection:
        while not done.wait(1 / _EVENTS_A_SECOND):
            value(connection, "select pgque.send('latency', 't', %s)", str(time.time()))


def _consume(url: str, seconds: int) -> list[float]:
    latencies: list[float] = []
    end = time.monotonic() + seconds
    with connect(url) as connection, psycopg.connect(url, autocommit=True) as listener:
        value(connection, "select pgque.register_consumer('latency', 'reader')")
        listener.execute('listen "pgque_latency"')
        while time.monotonic() < end:
            list(listener.notifies(timeout=1, stop_after=1))
            while batch := value(connection, "select pgque.next_batch('latency', 'reader')"):
                rows = connection.execute(
                    "select ev_data from pgque.get_batch_events(%s)", (batch,)
                ).fetchall()
                now = time.time()
                latencies += [now - float(row[0]) for row in rows]
                value(connection, "select pgque.finish_batch(%s)", batch)
    return latencies


def _handle(url: str, seconds: int) -> list[float]:
    latencies: list[float] = []
    consumer = Consumer(url, "latency", "handler", start_at="latest")

    @consumer.on()
    def handle(message: Message) -> None:
        latencies.append(time.time() - float(message.payload or ""))

    timer = threading.Timer(seconds, consumer.stop)
    timer.start()
    consumer.run()
    return latencies
