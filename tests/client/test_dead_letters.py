"""Dead letters through the client: filters reach the right arguments, and registrations may go."""

from datetime import UTC, datetime, timedelta

import pytest

from pgque_dagster.client import Client, ConsumerNotFound, QueueClosed
from tests.support.events import claim, make_queue, publish

HOUR = timedelta(hours=1)


@pytest.fixture
def given_up(client: Client) -> Client:
    """Two dead letters of type default, given up just now because they are torn."""
    make_queue(client)
    ids = publish(client, ["a", "b"])
    batch = claim(client)
    batch.dead_letter(ids, reason="torn")
    batch.ack()
    return client


def test_each_filter_fits_or_not(given_up: Client) -> None:
    now = datetime.now(UTC)
    for filters in (
        {"reason": "late"},
        {"type": "other"},
        {"since": now + HOUR},
        {"until": now - HOUR},
        {"limit": 0},
    ):
        assert given_up.replay_dead_letters("orders", **filters) == (0, 0, None), filters
    fitting = given_up.replay_dead_letters(
        "orders", reason="torn", type="default", since=now - HOUR, until=now + HOUR, limit=1
    )
    assert fitting == (1, 0, None)
    assert given_up.replay_dead_letters("orders") == (1, 0, None)


def test_a_closed_queue_keeps_them(given_up: Client) -> None:
    given_up.configure_queue("orders", disable_insert="true")
    with pytest.raises(QueueClosed):
        given_up.replay_dead_letters("orders")
    assert len(given_up.dead_letters("orders")) == 2


def test_they_go_with_their_consumer(given_up: Client) -> None:
    given_up.unregister_consumer("orders", "revenue")
    assert given_up.dead_letters("orders") == []


def test_kept_without_their_consumer_they_are_not_replayed(given_up: Client) -> None:
    given_up.unregister_consumer("orders", "revenue", keep_dead_letters=True)
    letter = given_up.dead_letters("orders")[0]
    with pytest.raises(ConsumerNotFound, match='"revenue"'):
        given_up.replay_dead_letter(letter.id)
    replayed, failed, error = given_up.replay_dead_letters("orders")
    assert (replayed, failed) == (0, 2)
    assert error is not None and '"revenue"' in error
    assert len(given_up.dead_letters("orders")) == 2
