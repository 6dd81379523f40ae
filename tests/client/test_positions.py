"""Registering a consumer at a position, and moving it, with the client."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pgque_dagster.client import CallRefused, InvalidArgument, Position, SkipsEvents, Sought
from pgque_dagster.client.ranges import write_position
from tests.client.consumer.support import Queue


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ("earliest", "earliest"),
        (" latest ", "latest"),
        (17, "17"),
        ("17", "17"),
        (datetime(2026, 5, 1, 12, tzinfo=UTC), "2026-05-01T12:00:00+00:00"),
        ("2026-05-01T12:00:00.5Z", "2026-05-01T12:00:00.500000+00:00"),
        (datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=2))), "2026-05-01T00:00:00+02:00"),
    ],
)
def test_a_position_is_written_as_sql_takes_it(position: Position, text: str) -> None:
    assert write_position(position) == text


def test_what_is_no_position_is_refused() -> None:
    wrong: list[Any] = [-1, True, None, 1.5, "", "soon", "-1", "²", datetime(2026, 5, 1)]
    for position in (*wrong, "2026-05-01"):
        with pytest.raises(InvalidArgument, match=r"position|time zone"):
            write_position(position)


def test_a_consumer_starts_where_it_is_told_and_can_be_moved(q: Queue) -> None:
    client, db = q.client, q.db
    q.send("a")
    first = 2
    since = db.value("select clock_timestamp()")
    q.client.send("q", "b")
    last = q.tick()

    assert client.register_consumer("q", "all", start_at="earliest")
    assert not client.register_consumer("q", "all", start_at="latest")
    client.register_consumer("q", "new", start_at=since)
    client.register_consumer("q", "none")
    found = {name: db.drain(consumer=name) for name in ("all", "new", "none")}

    assert found == {"all": ["a", "b"], "new": ["b"], "none": []}
    assert client.seek("q", "all", first) == Sought(first, 0, 1)
    with pytest.raises(SkipsEvents, match="skip 1 events"):
        client.seek("q", "all", "latest")
    assert client.seek("q", "all", "latest", skip=True) == Sought(last, 1, 0)

    q.claim()
    before = db.rows("select sub_last_tick, sub_batch from pgque.subscription")
    with pytest.raises(CallRefused, match="batch"):
        client.seek("q", "c", "earliest")
    assert db.rows("select sub_last_tick, sub_batch from pgque.subscription") == before
