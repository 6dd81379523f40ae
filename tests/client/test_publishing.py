"""What the client sends later, once, or for one partition."""

from datetime import UTC, datetime, timedelta

import pytest

from pgque_dagster.client import Client, InvalidArgument, Sent
from tests.support.queues import Connection, drain, events, make_queue, next_batch, tick, value

TOMORROW = datetime.now(UTC) + timedelta(days=1)
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def extras_of(db: Connection) -> list[str | None]:
    tick(db)
    return [row[6] for row in events(db, next_batch(db))]


@pytest.mark.parametrize("check_json", [False, True])
def test_a_partition_key_arrives(client: Client, db: Connection, check_json: bool) -> None:
    make_queue(db)
    client.send("q", {"a": 1}, partition_key="customer 7", check_json=check_json)
    client.send("q", {"a": 1}, check_json=check_json)
    client.send_idem("q", {"a": 1}, "k", partition_key="customer 8")
    assert extras_of(db) == ["customer 7", None, "customer 8"]


class TestSendAt:
    def test_an_event_waits_and_is_listed(self, client: Client, db: Connection) -> None:
        make_queue(db)
        entry = client.send_at("q", {"a": 1}, TOMORROW, type="reminder")
        (listed,) = client.list_scheduled("q")
        assert (listed.id, listed.deliver_at) == (entry, TOMORROW)
        assert (listed.type, listed.payload) == ("reminder", '{"a":1}')

    def test_an_event_whose_time_is_past_goes_at_once(self, client: Client, db: Connection) -> None:
        make_queue(db)
        client.send_at("q", "x", YESTERDAY)
        tick(db)
        assert drain(db) == ["x"]
        assert client.list_scheduled("q") == []

    def test_maintenance_delivers(self, client: Client, db: Connection) -> None:
        make_queue(db)
        client.send_at("q", "x", TOMORROW)
        db.execute("update pgque.delayed_events set de_deliver_at = now()")
        client.maint()
        tick(db)
        assert drain(db) == ["x"]

    def test_a_cancelled_event_is_gone(self, client: Client, db: Connection) -> None:
        make_queue(db)
        entry = client.send_at("q", "x", TOMORROW)
        assert [client.cancel_scheduled(entry), client.cancel_scheduled(entry)] == [True, False]
        assert client.list_scheduled("q") == []

    def test_a_list_is_as_long_as_asked_for(self, client: Client, db: Connection) -> None:
        make_queue(db)
        for _ in range(3):
            client.send_at("q", "x", TOMORROW)
        assert len(client.list_scheduled("q", 2)) == 2

    def test_a_time_without_a_zone_is_refused(self, client: Client, db: Connection) -> None:
        make_queue(db)
        with pytest.raises(InvalidArgument, match="time zone"):
            client.send_at("q", "x", TOMORROW.replace(tzinfo=None))


class TestSendIdem:
    def test_an_event_is_sent_once(self, client: Client, db: Connection) -> None:
        make_queue(db)
        first = client.send_idem("q", {"a": 1}, "k", type="order")
        assert client.send_idem("q", {"a": 2}, "k") == Sent(first.event_id, deduped=True)
        assert not first.deduped
        tick(db)
        assert [row[4:6] for row in events(db, next_batch(db))] == [("order", '{"a":1}')]

    def test_a_key_counts_as_long_as_it_is_told(self, client: Client, db: Connection) -> None:
        make_queue(db)
        client.send_idem("q", "x", "k", ttl=timedelta(microseconds=1))
        assert not client.send_idem("q", "x", "k").deduped

    def test_a_senseless_time_to_live_is_refused(self, client: Client, db: Connection) -> None:
        make_queue(db)
        with pytest.raises(InvalidArgument, match="more than 0"):
            client.send_idem("q", "x", "k", ttl=timedelta(0))


class TestQueueOptions:
    def test_a_queue_takes_its_options(self, client: Client, db: Connection) -> None:
        assert client.create_queue("q", max_retries=3, ticker_max_lag="1 second")
        assert not client.create_queue("q", max_retries=4)
        assert value(db, "select queue_max_retries from pgque.queue") == 4
        assert value(db, "select queue_ticker_max_lag from pgque.queue") == timedelta(seconds=1)

    def test_an_unknown_option_is_named(self, client: Client) -> None:
        with pytest.raises(InvalidArgument, match=r'"max_tries".*max_retries'):
            client.create_queue("q", max_tries=3)

    def test_a_paused_queue_hands_its_events_out_when_resumed(
        self, client: Client, db: Connection
    ) -> None:
        make_queue(db)
        client.pause_queue("q")
        client.send("q", "x")
        assert client.ticker() == 0
        client.resume_queue("q")
        assert client.ticker() == 1
        assert drain(db) == ["x"]
