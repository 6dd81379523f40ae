"""Measures consuming and ticking against PgQ's C extension, and large batches against plain SQL."""

from collections.abc import Callable

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, prepared, value

_CYCLES = 200
_POLLS = 2000
_LARGE = 1_000_000


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns the results for consumers and the ticker."""
    with connect(url) as connection:
        return [
            *_cycle(connection, rounds),
            *_empty_poll(connection, rounds),
            *_large_batch(connection, rounds),
            *_backlog(connection),
            *_ticker(connection, rounds),
        ]


def _fill(connection: Connection, schema: str, queue: str, batches: int) -> None:
    """Creates ticks of 100 events each."""
    tick = {
        "pgque": "perform pgque.force_next_tick($1); perform pgque.ticker($1);",
        "pgq": "perform pgq.force_tick($1); perform pgq.ticker($1);",
    }[schema]
    connection.execute(
        f"create or replace procedure fill(text, integer) language plpgsql as $$ begin "
        f"for i in 1..$2 loop "
        f"perform {schema}.insert_event($1, 't', repeat('x', 180)) from generate_series(1, 100); "
        f"commit; {tick} commit; end loop; end $$".encode()
    )
    connection.execute("call fill(%s, %s)", (queue, batches))


def _cycle(connection: Connection, rounds: int) -> list[Result]:
    for schema in ("pgque", "pgq"):
        value(connection, f"select {schema}.create_queue('cycle')")
        value(connection, f"select {schema}.register_consumer('cycle', 'reader')")
        _fill(connection, schema, "cycle", _CYCLES * (rounds + 1))

    def cycle(schema: str) -> Callable[[], None]:
        next_batch = prepared(connection, f"select {schema}.next_batch('cycle', 'reader')")
        get_events = prepared(connection, f"select * from {schema}.get_batch_events($1)")
        finish = prepared(connection, f"select {schema}.finish_batch($1)")

        def run() -> None:
            batch = next_batch().get_value(0, 0) or b""
            assert get_events(batch).ntuples == 100
            finish(batch)

        return run

    costs = medians(
        [
            Contender(schema, lambda schema=schema: timed(cycle(schema), _CYCLES))  # type: ignore[misc]
            for schema in ("pgque", "pgq")
        ],
        rounds,
    )
    return [
        Result(
            "full cycle: next_batch, read 100, finish",
            "C PgQ",
            costs["pgq"] / costs["pgque"],
            ">=",
            1.5,
            f"{1 / costs['pgque']:,.0f}/{1 / costs['pgq']:,.0f} per s",
        )
    ]


def _empty_poll(connection: Connection, rounds: int) -> list[Result]:
    for schema in ("pgque", "pgq"):
        value(connection, f"select {schema}.register_consumer('cycle', 'idle')")
    calls = {
        "empty poll": "select pgque.next_batch('cycle', 'idle')",
        "empty receive": "select * from pgque.receive('cycle', 'idle')",
        "pgq": "select pgq.next_batch('cycle', 'idle')",
    }
    costs = medians(
        [
            Contender(name, lambda call=call: timed(prepared(connection, call), _POLLS))  # type: ignore[misc]
            for name, call in calls.items()
        ],
        rounds,
    )
    return [
        Result(
            name,
            "C PgQ's next_batch",
            costs["pgq"] / costs[name],
            ">=",
            target,
            f"{costs[name] * 1e6:.0f}/{costs['pgq'] * 1e6:.0f} µs",
        )
        for name, target in (("empty poll", 1.0), ("empty receive", 1.1))
    ]


def _large_batch(connection: Connection, rounds: int) -> list[Result]:
    value(connection, "select pgque.create_queue('large')")
    value(connection, "select pgque.register_consumer('large', 'reader')")
    connection.execute(
        b"select pgque.send_batch('large', 't', array_agg(repeat('x', 180))) "
        b"from generate_series(1, %d) i group by i / 10000" % _LARGE
    )
    value(connection, "select pgque.force_next_tick('large')")
    value(connection, "select pgque.ticker('large')")
    batch = value(connection, "select pgque.next_batch('large', 'reader')")
    bare = value(connection, "select pgque.batch_event_sql(%s)", batch)

    through = f"select * from pgque.get_batch_events({batch})"

    def copy(query: str) -> Callable[[], None]:
        return lambda: connection.execute(f"copy ({query}) to '/dev/null'".encode()) and None

    costs = medians(
        [
            Contender("bare", lambda: timed(copy(bare))),
            Contender("function", lambda: timed(copy(through))),
        ],
        rounds,
    )
    return [
        Result(
            "1M-event batch, COPY of get_batch_events",
            "COPY of the bare query",
            costs["function"] / costs["bare"],
            "<=",
            1.4,
            f"{costs['function']:.2f}/{costs['bare']:.2f} s",
        ),
    ]


def _backlog(connection: Connection) -> list[Result]:
    """Measures a cycle with batches of 100 events while the backlog grows between measurements."""
    value(connection, "select pgque.create_queue('backlog')")
    value(connection, "select pgque.register_consumer('backlog', 'reader')")

    def cycle() -> None:
        batch = value(connection, "select pgque.next_batch('backlog', 'reader')")
        connection.execute("select * from pgque.get_batch_events(%s)", (batch,)).fetchall()
        value(connection, "select pgque.finish_batch(%s)", batch)

    costs = {}
    filled = 0
    for backlog in (10**3, 10**5, 10**7):
        value(connection, "select pgque.force_next_tick('backlog')")
        value(connection, "select pgque.ticker('backlog')")
        _fill(connection, "pgque", "backlog", min(1000, (backlog - filled) // 100))
        missing = max(0, backlog - filled - 100_000)
        connection.execute(
            b"select pgque.send_batch('backlog', 't', array_agg(repeat('x', 180))) "
            b"from generate_series(1, %d) i group by i / 10000" % missing
        )
        _fill(connection, "pgque", "backlog", 2)
        filled = backlog
        costs[backlog] = sorted(timed(cycle) for _ in range(7))[3]
    return [
        Result(
            "batch cycle, backlog of 10^7 events",
            "with 10^3",
            costs[10**7] / costs[10**3],
            "<=",
            1.2,
            ", ".join(f"{cost * 1e6:.0f} µs at {events:,}" for events, cost in costs.items()),
        )
    ]


def _ticker(connection: Connection, rounds: int) -> list[Result]:
    for schema in ("pgque", "pgq"):
        for number in range(1000):
            value(connection, f"select {schema}.create_queue(%s)", f"many_{number}")
        connection.execute(
            f"update {schema}.queue set queue_ticker_max_count = 1, "
            f"queue_ticker_idle_period = '1 day'".encode()
        )
        value(connection, f"select {schema}.ticker()")

    def idle(schema: str) -> float:
        return timed(lambda: value(connection, f"select {schema}.ticker()"), 5)

    def active(schema: str) -> float:
        connection.execute(
            f"select {schema}.insert_event(queue_name, 't', 'x') from {schema}.queue".encode()
        )
        return timed(lambda: value(connection, f"select {schema}.ticker()"))

    results = []
    for kind, run in (("idle", idle), ("active", active)):
        costs = medians(
            [
                Contender(schema, lambda schema=schema, run=run: run(schema))  # type: ignore[misc]
                for schema in ("pgque", "pgq")
            ],
            rounds,
        )
        results.append(
            Result(
                f"ticker() with 1000 queues, {kind}",
                "C PgQ",
                costs["pgque"] / costs["pgq"],
                "<=",
                0.4,
                f"{costs['pgque'] * 1000:.1f}/{costs['pgq'] * 1000:.1f} ms",
            )
        )
    return results
