"""Measures ticks against PgQ's C extension, in processor time of the server's session.

Other work on the machine affects this time less than it affects the time that a client waits.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.servers import Connection, connect, prepared, value

_SCHEMAS = ("pgque", "pgq")
_STEPS = ("insert", "tick", "next_batch", "read", "finish")


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns the results for a cycle of one event, for the ticker, and for maintenance."""
    with connect(url) as connection:
        return [
            *_cycle(connection, 200 * rounds),
            *_tickers(url, connection, 100 * rounds),
            *_idle_queues(connection, rounds),
        ]


def _clock(connection: Connection) -> Callable[[], float]:
    """Returns a function that returns the processor time of the connection's session so far."""
    schedule = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    return lambda: int(schedule.read_text().split()[0]) / 1e9


def _cycle(connection: Connection, cycles: int) -> list[Result]:
    """Measures the whole cycle of one event, when each event has its own tick."""
    now = _clock(connection)
    costs: dict[tuple[str, str], list[float]] = {}
    calls = {}
    for schema in _SCHEMAS:
        value(connection, f"select {schema}.create_queue('one')")
        for setting in ("'ticker_max_count', '1'", "'ticker_max_lag', '0'"):
            value(connection, f"select {schema}.set_queue_config('one', {setting})")
        value(connection, f"select {schema}.register_consumer('one', 'reader')")
        calls[schema] = [
            prepared(connection, statement)
            for statement in (
                f"select {schema}.insert_event('one', 't', '{'x' * 180}')",
                f"select {schema}.ticker('one')",
                f"select {schema}.next_batch('one', 'reader')",
                f"select * from {schema}.get_batch_events($1)",
                f"select {schema}.finish_batch($1)",
            )
        ]
    for _ in range(cycles):
        for schema in _SCHEMAS:
            batch: list[bytes] = []
            for step, call in zip(_STEPS, calls[schema], strict=True):
                start = now()
                answer = call(*batch)
                costs.setdefault((schema, step), []).append(now() - start)
                if step == "next_batch":
                    batch = [answer.get_value(0, 0) or b""]
    medians = {key: statistics.median(values) for key, values in costs.items()}
    totals = {schema: sum(medians[schema, step] for step in _STEPS) for schema in _SCHEMAS}
    return [
        Result(
            "cycle of one event",
            "C PgQ",
            totals["pgq"] / totals["pgque"],
            ">=",
            1.6,
            "; ".join(
                f"{step} {medians['pgque', step] * 1e6:.0f}/{medians['pgq', step] * 1e6:.0f} µs"
                for step in _STEPS
            ),
        )
    ]


def _tickers(url: str, connection: Connection, ticks: int) -> list[Result]:
    """Measures a tick of one active queue, alone and beside another queue's open transaction."""
    for schema in _SCHEMAS:
        for queue in ("active", "elsewhere"):
            value(connection, f"select {schema}.create_queue('{queue}')")
        value(connection, f"select {schema}.set_queue_config('active', 'ticker_max_count', '1')")
    results = []
    for call in ("ticker('active')", "ticker()"):
        for beside in ("", ", beside an open transaction"):
            with connect(url) as other:
                if beside:
                    other.execute("begin")
                    other.execute("select pgque.send('elsewhere', 'x')")
                costs = _in_turns(connection, call, ticks)
            results.append(
                Result(
                    f"{call} with one active queue{beside}",
                    "C PgQ",
                    costs["pgque"] / costs["pgq"],
                    "<=",
                    1.0 if call == "ticker()" else None,
                    f"{costs['pgque'] * 1e6:.0f}/{costs['pgq'] * 1e6:.0f} µs",
                )
            )
    return results


def _in_turns(connection: Connection, call: str, ticks: int) -> dict[str, float]:
    now = _clock(connection)
    costs: dict[str, list[float]] = {schema: [] for schema in _SCHEMAS}
    runs = {schema: prepared(connection, f"select {schema}.{call}") for schema in _SCHEMAS}
    for _ in range(ticks):
        for schema, run in runs.items():
            value(connection, f"select {schema}.insert_event('active', 't', 'x')")
            start = now()
            run()
            costs[schema].append(now() - start)
    return {schema: statistics.median(values) for schema, values in costs.items()}


def _idle_queues(connection: Connection, rounds: int) -> list[Result]:
    """Measures maintenance that has nothing to do, with three ticks in each of 1,000 queues."""
    now = _clock(connection)
    for number in range(1000):
        value(connection, "select pgque.create_queue(%s)", f"idle_{number}")
    for _ in range(2):
        connection.execute(
            "insert into pgque.tick_request (queue_id) select queue_id from pgque.queue"
        )
        value(connection, "select pgque.ticker()")
    while value(connection, "select pgque.maint()"):  # what the other measurements left
        pass
    costs = []
    for _ in range(rounds):
        start = now()
        value(connection, "select pgque.maint()")
        costs.append(now() - start)
    milliseconds = statistics.median(costs) * 1000
    return [
        Result(
            "maint() with 1,000 idle queues",
            "milliseconds",
            milliseconds,
            "<=",
            50,
            "",
        )
    ]
