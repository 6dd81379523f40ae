"""US-10: an operator runs the install script again, the same one or a newer one, at no risk."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues import Connection, connect, event_tables, rows
from tests.support.released import RELEASES
from tests.support.stories import Operator, Producer, Worker, sign_in

INSTALLED = {"this": INSTALL_SQL.read_bytes()} | {
    release.version: release.sql() for release in RELEASES
}

# What a release has promised to keep, by what it is called in a conversation.
KEPT = {
    "queues": "select queue_id, queue_name, queue_max_retries, queue_rotation_period,"
    " queue_ticker_max_count from pgque.queue order by 1",
    "consumer positions": "select sub_queue, sub_consumer, sub_id, sub_last_tick, sub_batch,"
    " sub_next_tick from pgque.subscription order by 1, 2",
    "ticks": "select tick_queue, tick_id, tick_time, tick_snapshot::text, tick_event_seq"
    " from pgque.tick order by 1, 2",
    "events": "select ev_id, ev_time, ev_txid::text, ev_type, ev_data"
    " from {event_tables} order by 1, 2",
    "retries": "select ev_queue, ev_id, ev_retry_after, ev_data from pgque.retry_queue order by 1",
    "dead letters": "select dl_id, dl_reason, ev_id, ev_data from pgque.dead_letter order by 1",
    "depth": "select queue_name, consumer_name, pending_events"
    " from pgque.get_consumer_info() order by 1, 2",
}


def note_down(db: Connection) -> dict[str, list[tuple[Any, ...]]]:
    tables = event_tables(db)
    return {name: rows(db, sql.format(event_tables=tables)) for name, sql in KEPT.items()}


@pytest.mark.parametrize("installed", INSTALLED.values(), ids=INSTALLED.keys())
def test_installing_over_a_queue_in_use_keeps_all_of_it(
    installed: bytes, new_database_url: str, stack: ExitStack
) -> None:
    # Given an installation in use: one consumer amid a batch, with a retry and a dead letter,
    # another one behind, and events that no tick has seen yet.
    owner = stack.enter_context(connect(new_database_url))
    owner.execute(installed)
    operator = Operator(stack.enter_context(sign_in(new_database_url, "story_operator")))
    producer = Producer(stack.enter_context(sign_in(new_database_url, "story_producer")))
    swift, late = (
        Worker(stack.enter_context(sign_in(new_database_url, "story_worker")), "orders", name)
        for name in ("swift", "late")
    )
    operator.creates_queue("orders", max_retries="3", rotation_period="1 day")
    swift.subscribes()
    late.subscribes()
    producer.sends("orders", "flaky", "broken", "fine")
    operator.ticks("orders")
    flaky, broken, _ = swift.receives()
    swift.nacks(flaky, "busy")
    swift.asks("select pgque.dead_letter_batch(%s, %s, 'bad')", broken.batch_id, [broken.msg_id])
    producer.sends("orders", "not ticked yet")
    before = note_down(owner)
    assert all(before.values())

    # When the install script runs again,
    owner.execute(INSTALL_SQL.read_bytes())

    # then everything is as it was,
    assert note_down(owner) == before

    # the open batch can be finished and the others go on where they were,
    swift.acks(flaky)
    operator.maintains()
    producer.sends("orders", "new")
    operator.ticks("orders")
    assert sorted(swift.works_off()) == ["flaky", "new", "not ticked yet"]
    assert late.works_off() == ["flaky", "broken", "fine", "not ticked yet", "new"]

    # and the dead letter can still be replayed.
    producer.asks("select pgque.dlq_replay_all('orders')")
    operator.ticks("orders")
    assert (swift.works_off(), late.works_off()) == (["broken"], [])
