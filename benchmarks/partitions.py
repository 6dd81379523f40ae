"""Measures receiving a queue's events through slots by key, against one plain receive."""

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, prepared, value

_EVENTS = 100_000
_KEYS = 10_000
_SLOTS = 8


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns the results for partitioned consumers."""
    with connect(url) as connection:
        value(connection, "select pgque.create_queue('keyed')")
        value(connection, "select pgque.subscribe('keyed', 'plain')")
        for slot in range(_SLOTS):
            subscribe = "select pgque.subscribe_slot('keyed', 'slots', %s, %s)"
            value(connection, subscribe, slot, _SLOTS)
            value(connection, "select pgque.claim_slot('keyed', 'slots', %s, 'bench')", slot)
        _fill(connection)
        return [_receive(connection, rounds)]


def _fill(connection: Connection) -> None:
    """Makes one batch of events with 180 bytes each."""
    connection.execute(
        b"select count(pgque.insert_event('keyed', 't', repeat('x', 180), 'key-' || i %% %s,"
        b" null, null, null)) from generate_series(1, %s) i",
        (_KEYS, _EVENTS),
    )
    value(connection, "select pgque.force_next_tick('keyed')")
    value(connection, "select pgque.ticker('keyed')")


def _receive(connection: Connection, rounds: int) -> Result:
    """Receives the whole batch without an ack, so that each round gets the same messages."""
    everything = str(_EVENTS + 1).encode()
    plain = prepared(connection, "select * from pgque.receive('keyed', 'plain', $1)")
    slot = prepared(
        connection,
        f"select * from pgque.receive_partitioned('keyed', 'slots', $1, {_SLOTS}, 'bench', $2)",
    )

    def all_slots() -> None:
        pages = [slot(str(number).encode(), everything) for number in range(_SLOTS)]
        assert sum(page.ntuples for page in pages) == _EVENTS

    def one_reader() -> None:
        assert plain(everything).ntuples == _EVENTS

    costs = medians(
        [
            Contender("slots", lambda: timed(all_slots)),
            Contender("plain", lambda: timed(one_reader)),
        ],
        rounds,
    )
    return Result(
        f"partitioned receive with {_SLOTS} slots",
        "one plain receive",
        costs["slots"] / costs["plain"],
        "<=",
        2.0,
        f"{costs['slots']:.2f}/{costs['plain']:.2f} s for {_EVENTS:,} events",
    )
