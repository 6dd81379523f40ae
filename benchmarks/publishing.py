"""Measures sending with an idempotency key against send, and delivery against send_batch."""

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.producers import PAYLOAD, pgbench
from benchmarks.servers import Connection, connect, value

DUE = 100_000
HELD = 1_000_000


def measure(url: str, *, seconds: int, rounds: int) -> list[Result]:
    """Returns the results for idempotent and delayed sending."""
    with connect(url) as connection:
        value(connection, "select pgque.create_queue('publishing')")
        return [
            _under_keys(url, connection, held=0, target=0.6, seconds=seconds, rounds=rounds),
            _under_keys(url, connection, held=HELD, target=None, seconds=seconds, rounds=rounds),
            _delivered(connection, rounds=rounds),
        ]


def _under_keys(
    url: str,
    connection: Connection,
    *,
    held: int,
    target: float | None,
    seconds: int,
    rounds: int,
) -> Result:
    # Both scripts compute a random key. No key is a duplicate.
    key = "\\set key random(1, 1000000000000000)\n"
    send = pgbench(url, f"{key}select pgque.send('publishing', 't', '{PAYLOAD}')", seconds)
    under_key = pgbench(
        url,
        f"{key}select * from pgque.send_idem('publishing', 't', '{PAYLOAD}', :key::text)",
        seconds,
    )

    def send_idem() -> float:
        connection.execute("truncate pgque.idem")
        connection.execute(
            "insert into pgque.idem select 1, 'held ' || nr, nr, now() + '1 hour'"
            " from generate_series(1, %s) nr",
            [held],
        )
        return under_key()

    costs = medians([Contender("send", send), Contender("send_idem", send_idem)], rounds)
    return Result(
        f"send_idem, {held:,} keys held, 4 clients",
        "send",
        costs["send"] / costs["send_idem"],
        ">=",
        target,
        f"{1 / costs['send_idem']:,.0f}/{1 / costs['send']:,.0f} per s",
    )


def _delivered(connection: Connection, *, rounds: int) -> Result:
    def deliver() -> float:
        connection.execute(
            "insert into pgque.delayed_events (de_queue_name, de_deliver_at, de_type, de_data)"
            " select 'publishing', now(), 't', %s from generate_series(1, %s)",
            [PAYLOAD, DUE],
        )
        cost = timed(lambda: value(connection, "select pgque.maint_deliver_delayed()"))
        connection.execute("vacuum pgque.delayed_events")
        return cost

    def insert() -> float:
        sql = (
            "select cardinality(pgque.send_batch('publishing', 't',"
            " array(select %s from generate_series(1, %s))))"
        )
        return timed(lambda: value(connection, sql, PAYLOAD, DUE))

    costs = medians([Contender("deliver", deliver), Contender("insert", insert)], rounds)
    return Result(
        f"delivery of {DUE:,} due events",
        "send_batch of them",
        costs["deliver"] / costs["insert"],
        "<=",
        2.0,
        f"{costs['deliver'] * 1000:.0f}/{costs['insert'] * 1000:.0f} ms",
    )
