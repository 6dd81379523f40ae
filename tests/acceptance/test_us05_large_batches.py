"""US-5: a pipeline takes thousands of events a batch."""

import time

from tests.acceptance.conftest import Hire
from tests.support.queues import PATIENCE_SECONDS
from tests.support.stories import Operator, Producer

COUNT = 10_000
DEPTH = "select depth from pgque.queue_stats() where queue_name = 'ingest'"


def test_ten_thousand_events_of_one_transaction_come_in_one_batch(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a pipeline that subscribes to a queue,
    operator.creates_queue("ingest")
    etl = hire("ingest", "etl")
    etl.subscribes()

    # when ten thousand events are sent in one transaction,
    payloads = [f'{{"row": {number}}}' for number in range(COUNT)]
    producer.sends_at_once("ingest", payloads)
    operator.ticks("ingest")
    assert operator.asks_one(DEPTH) == COUNT

    # then one batch holds them all, in order.
    messages = etl.receives(COUNT)
    assert [message.payload for message in messages] == payloads
    assert len({message.batch_id for message in messages}) == 1

    # After the ack the queue is empty,
    etl.acks(messages[0])
    assert operator.asks_one(DEPTH) == 0
    assert etl.receives(COUNT) == []

    # and the events were inserted once and never touched again.
    for person in (producer, etl):
        person.db.close()  # what it did is counted at the latest then
    assert event_rows(operator) == (COUNT, 0)


def event_rows(operator: Operator) -> tuple[int, int]:
    """How many rows the event tables got, and how many were updated, deleted or are dead."""
    sql = """
    select sum(n_tup_ins)::bigint, sum(n_tup_upd + n_tup_del + n_dead_tup)::bigint
    from pg_stat_user_tables where schemaname = 'pgque' and relname ~ '^event_[0-9]+_'
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        ((inserted, touched),) = operator.asks(sql)
        if inserted or time.monotonic() > deadline:
            return inserted, touched
        time.sleep(0.05)
