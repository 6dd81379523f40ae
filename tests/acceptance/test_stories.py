"""What the people of a queue do with it from end to end, each with the one role that they need."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.acceptance.conftest import Hire
from tests.conftest import INSTALL_SQL
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, event_tables, rows, value
from tests.support.released import RELEASES
from tests.support.stories import Message, Operator, Producer, Worker, sign_in

FIVE = ["1", "2", "3", "4", "5"]


def until(condition: Callable[[], Any], step: Callable[[], Any] = lambda: None) -> Any:
    """Repeats a step until the condition is met; returns what met it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (met := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        step()
        time.sleep(0.05)
    return met


def test_us1_a_message_goes_from_a_fresh_installation_to_its_consumer(
    new_database_url: str, stack: ExitStack
) -> None:
    # Given a database with the queue just installed, and a subscriber.
    owner = stack.enter_context(connect(new_database_url))
    owner.execute(INSTALL_SQL.read_bytes())
    operator = Operator(stack.enter_context(sign_in(new_database_url, "story_operator")))
    producer = Producer(stack.enter_context(sign_in(new_database_url, "story_producer")))
    app = Worker(stack.enter_context(sign_in(new_database_url, "story_worker")), "orders", "app")
    operator.creates_queue("orders")
    app.subscribes()

    # When one message is sent,
    producer.sends("orders", '{"id":1}')
    operator.ticks("orders")

    # then it arrives as it was sent, and after the ack nothing is left.
    (message,) = app.receives(10)
    assert (message.payload, message.type) == ('{"id":1}', "default")
    app.acks(message)
    assert app.receives(10) == []

    # When the queue is not needed any more, it goes, and so does the schema.
    operator.asks("select pgque.drop_queue('orders', true)")
    value(owner, "select pgque.uninstall()::text")
    assert value(owner, "select to_regnamespace('pgque')") is None


def test_us2_three_teams_get_the_same_events_independently(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a queue that three teams subscribe to, one of them later,
    operator.creates_queue("events")
    teams = [hire("events", name) for name in ("analytics", "notifier", "audit")]
    analytics, notifier, audit = teams
    analytics.subscribes()
    producer.sends("events", "before")
    operator.ticks("events")
    assert analytics.works_off() == ["before"]
    notifier.subscribes()
    audit.subscribes()

    # when five events are sent,
    producer.sends("events", *FIVE)
    operator.ticks("events")

    # then each team receives all five.
    batches = [team.receives() for team in teams]
    assert [[message.payload for message in batch] for batch in batches] == [FIVE] * 3

    # And when one team is done, the others' batches are as before,
    analytics.acks(batches[0][0])
    assert [team.receives() for team in teams] == [[], *batches[1:]]

    # which the statistics show.
    assert operator.asks(
        "select consumer_name, pending_events, batch_active, lag >= '0'"
        " from pgque.consumer_stats() where queue_name = 'events' order by 1"
    ) == [
        ("analytics", 0, False, True),
        ("audit", 5, True, True),
        ("notifier", 5, True, True),
    ]


def test_us3_a_job_that_fails_is_retried_until_it_becomes_a_dead_letter(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a job that fails at every attempt, and may be tried again twice,
    operator.creates_queue("jobs", max_retries="2")
    worker = hire("jobs", "worker")
    worker.subscribes()
    producer.sends("jobs", "flaky")
    operator.ticks("jobs")

    def fail() -> Message:
        (message,) = worker.receives()
        worker.nacks(message, "upstream timeout")
        worker.acks(message)
        operator.maintains()
        operator.ticks("jobs")
        return message

    attempts = [fail() for _ in range(3)]

    # then it is the same job, and its retries are counted.
    assert [(each.payload, each.retry_count or 0) for each in attempts] == [
        ("flaky", 0),
        ("flaky", 1),
        ("flaky", 2),
    ]

    # After the last one it is a dead letter and comes no more.
    letters = "select dl_id, ev_data, dl_reason, ev_retry from pgque.dlq_inspect('jobs')"
    assert worker.receives() == []
    (letter,) = worker.asks(letters)
    assert letter[1:] == ("flaky", "upstream timeout", 2)

    # When it is replayed, it comes again with its retries counted anew, and may succeed.
    producer.asks("select pgque.dlq_replay(%s)", letter[0])
    operator.ticks("jobs")
    assert fail().retry_count is None
    assert (worker.works_off(), worker.receives(), worker.asks(letters)) == (["flaky"], [], [])


def test_us4_a_reminder_comes_when_it_is_due_and_not_before(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    operator.creates_queue("reminders")
    sender = hire("reminders", "sender")
    sender.subscribes()

    def look() -> list[Message]:
        """What the sender gets once maintenance and ticker have run."""
        operator.maintains()
        operator.ticks("reminders")
        return sender.receives()

    # Given reminders for tomorrow, for a time gone by, and one that is due in a moment,
    remind = "select pgque.send_at('reminders', 'remind', %s::text, now() + %s::interval)"
    producer.asks(remind, "Ada", "1 day")
    producer.asks(remind, "Eve", "-1 hour")
    producer.asks(remind, "Bob", "1.5 seconds")
    due = operator.asks_one("select clock_timestamp() + interval '1.4 seconds'")

    # when the sender looks at once, there is the one that is late already;
    assert [message.payload for message in look()] == ["Eve"]
    sender.works_off()

    # when the moment has passed, the other one is there, not earlier than it was due.
    (message,) = until(look)
    assert (message.type, message.payload) == ("remind", "Bob")
    assert operator.asks_one("select clock_timestamp()") >= max(due, message.created_at)
    sender.acks(message)
    assert look() == []


def test_us5_ten_thousand_events_of_one_transaction_come_in_one_batch(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a pipeline that subscribes to a queue,
    depth = "select depth from pgque.queue_stats() where queue_name = 'ingest'"
    operator.creates_queue("ingest")
    etl = hire("ingest", "etl")
    etl.subscribes()

    # when ten thousand events are sent in one transaction,
    payloads = [f'{{"row": {number}}}' for number in range(10_000)]
    producer.sends_at_once("ingest", payloads)
    operator.ticks("ingest")
    assert operator.asks_one(depth) == 10_000

    # then one batch holds them all, in order.
    messages = etl.receives(10_000)
    assert [message.payload for message in messages] == payloads
    assert len({message.batch_id for message in messages}) == 1

    # After the ack the queue is empty,
    etl.acks(messages[0])
    assert operator.asks_one(depth) == 0
    assert etl.receives(10_000) == []

    # and the events were inserted once and never touched again.
    for person in (producer, etl):
        person.db.close()  # what it did is counted at the latest then
    touched = """
    select sum(n_tup_ins)::bigint, sum(n_tup_upd + n_tup_del + n_dead_tup)::bigint
    from pg_stat_user_tables where schemaname = 'pgque' and relname ~ '^event_[0-9]+_'
    """
    until(lambda: operator.asks(touched)[0][0])
    assert operator.asks(touched) == [(10_000, 0)]


def test_us6_a_lagging_consumer_holds_rotation_up_and_loses_nothing(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a queue that rotates every half second, and two consumers of which one sleeps,
    operator.creates_queue("stream", rotation_period="500 milliseconds")
    fast, slow = hire("stream", "fast"), hire("stream", "slow")
    fast.subscribes()
    slow.subscribes()
    sent: list[str] = []
    received: list[str] = []

    def go_on() -> None:
        sent.append(str(len(sent)))
        producer.sends("stream", sent[-1])
        operator.ticks("stream")
        received.extend(fast.works_off())
        operator.maintains()

    def rotation(comparison: str) -> Any:
        sql = f"select rotation_age {comparison} rotation_period from pgque.queue_stats()"
        return operator.asks_one(sql)

    # when the stream goes on, the operator is warned of the sleeper and not of the other,
    until(lambda: operator.health("stream")["consumer_lag:slow"] == "critical", go_on)
    until(lambda: operator.health("stream")["consumer_lag:fast"] == "ok", go_on)

    # and rotation waits for the sleeper, while the other receives everything.
    until(lambda: rotation("> 3 *"), go_on)
    assert received == sent

    # When the sleeper wakes up, everything is still there for it,
    late = slow.works_off()
    assert late == sent

    # and rotation goes on, with both consumers at it.
    until(lambda: rotation("<"), go_on)
    assert late + slow.works_off() == received == sent


def test_us7_a_payment_is_booked_once_though_its_processor_crashes(
    database_url: str, operator: Operator, producer: Producer, hire: Hire
) -> None:
    with connect(database_url) as owner:
        owner.execute("create table processed (id int primary key)")
        owner.execute("grant select, insert on processed to pgque_reader")
    operator.creates_queue("payments")

    def process(processor: Worker) -> Message:
        """Books the one payment that is there, and acks it, in the open transaction."""
        (message,) = processor.receives()
        processor.db.execute("insert into processed values (%s::int)", [message.payload])
        processor.acks(message)
        return message

    def booked(processor: Worker) -> list[int]:
        return [number for (number,) in processor.asks("select id from processed order by 1")]

    def pay(number: int) -> None:
        producer.sends("payments", str(number))
        operator.ticks("payments")

    # When a payment is processed and acked in one transaction,
    processor = hire("payments", "processor")
    processor.subscribes()
    pay(42)
    with processor.db.transaction():
        process(processor)

    # then it is booked and the queue is done with it.
    assert (booked(processor), processor.receives()) == ([42], [])

    # When the processor of the next payment dies before it commits,
    pay(43)
    processor.db.execute("begin")
    lost = process(processor)
    processor.db.close()

    # then neither booking nor ack has happened, and the payment comes to its successor,
    successor = hire("payments", "processor")
    assert booked(successor) == [42]
    with successor.db.transaction():
        again = process(successor)
    assert (again.msg_id, again.payload) == (lost.msg_id, "43")

    # who booked it once.
    assert (booked(successor), successor.receives()) == ([42, 43], [])


def test_us9_an_operator_tells_the_queues_that_are_well_that_lag_and_that_lose_messages(
    operator: Operator, producer: Producer, hire: Hire, database_url: str
) -> None:
    # Given three queues: one is well, one lags, one has a dead letter,
    workers = {}
    for queue in ("well", "lagging", "failing"):
        operator.creates_queue(queue)
        workers[queue] = hire(queue, "consumer")
        workers[queue].subscribes()
        operator.ticks(queue)
    producer.sends("lagging", "x", "y", "z")
    operator.ticks("lagging")
    with connect(database_url) as owner:
        owner.execute(
            "update pgque.tick_log set tick_time = tick_time - interval '1 hour'"
            " where tick_queue = (select queue_id from pgque.queue where queue_name = 'lagging')"
        )
        owner.execute("update pgque.position_log set sub_active = now() - interval '1 hour'")
    producer.sends("failing", "broken", "fine")
    operator.ticks("failing")
    broken, _ = workers["failing"].receives()
    workers["failing"].asks(
        "select pgque.dead_letter_batch(%s, %s, 'bad')", broken.batch_id, [broken.msg_id]
    )
    workers["failing"].acks(broken)
    producer.sends("well", "a", "b")
    for queue in ("well", "lagging"):
        operator.ticks(queue)
    workers["well"].works_off()

    # then the statistics tell them apart,
    assert operator.asks(
        "select queue_name, depth, consumers, dlq_count from pgque.queue_stats() order by 1"
    ) == [("failing", 0, 1, 1), ("lagging", 3, 1, 0), ("well", 0, 1, 0)]
    assert operator.asks(
        "select queue_name, pending_events, batch_active, lag > '59 minutes'"
        " from pgque.consumer_stats() order by 1"
    ) == [("failing", 0, False, False), ("lagging", 3, False, True), ("well", 0, False, False)]
    stuck = "select queue_name, consumer_name from pgque.stuck_consumers(%s::interval)"
    assert operator.asks(stuck, "50 minutes") == [("lagging", "consumer")]
    assert operator.asks(stuck, "2 hours") == []

    # health goes from ok by warning to critical,
    def health(period: str) -> str:
        operator.asks("select pgque.set_queue_config('lagging', 'rotation_period', %s)", period)
        return operator.health("lagging")["consumer_lag:consumer"]

    assert [health(each) for each in ("1 day", "100 min", "10 min")] == [
        "ok",
        "warning",
        "critical",
    ]
    assert set(operator.health("well").values()) == {"ok"}

    # and the metrics have the names and types that dashboards know.
    metrics = operator.asks(
        "select metric_name, metric_type, labels ->> 'queue', value from pgque.otel_metrics()"
    )
    shown = {(name, kind, queue): float(number) for name, kind, queue, number in metrics}
    assert shown["pgque.queue.depth", "gauge", "lagging"] == 3
    assert shown["pgque.queue.oldest_message_age_seconds", "gauge", "well"] == 0
    assert shown["pgque.message.dead_lettered", "gauge", "failing"] == 1
    assert shown["pgque.message.sent_total", "counter", "well"] == 2
    assert shown["pgque.message.acked_total", "counter", "well"] == 2
    assert shown["pgque.message.nacked_total", "counter", "well"] == 0
    assert shown["pgque.consumer.lag_seconds", "gauge", "lagging"] > 3500
    assert shown["pgque.consumer.pending_events", "gauge", "lagging"] == 3


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
INSTALLED = {"this": INSTALL_SQL.read_bytes()} | {
    release.version: release.sql() for release in RELEASES
}


def note_down(db: Connection) -> dict[str, list[tuple[Any, ...]]]:
    tables = event_tables(db)
    return {name: rows(db, sql.format(event_tables=tables)) for name, sql in KEPT.items()}


@pytest.mark.parametrize("installed", INSTALLED.values(), ids=INSTALLED.keys())
def test_us10_installing_over_a_queue_in_use_keeps_all_of_it(
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

    # When the install script runs again, then everything is as it was,
    owner.execute(INSTALL_SQL.read_bytes())
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
