"""Another number of slots: nothing is lost, nothing comes twice, and keys keep their order."""

import threading
import time
from collections.abc import Callable

import pytest

from pgque_dagster.client import Client, PartitionedConsumer
from tests.support.queues import Connection, connect, make_queue, refused, rows, send, tick, value
from tests.support.slots import (
    ack,
    claim,
    consumer_with_failures,
    failures,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    send_keyed,
    slot_of,
)

Another = Callable[[], Connection]
KEYS = [f"key {number}" for number in range(12)]
PATIENCE_SECONDS = 120


def repartition(db: Connection, n: int) -> int:
    carried: int = value(db, "select pgque.repartition('q', 'c', %s)", n)
    return carried


def publish_round(db: Connection, number: int) -> None:
    """One event of each key, in a tick of its own."""
    publish_keyed(db, *((key, f"{key}: {number}") for key in KEYS))


def fail_each(db: Connection) -> None:
    """Each of two slots takes a round back."""
    publish_round(db, 0)
    for slot in range(2):
        for message in receive(db, slot, 2):
            nack(db, message[0], slot, 2)
        ack(db, slot, 2)


def consume(db: Connection, n: int, most: int = 100) -> list[str]:
    """All that the slots hold, acked; each event has to come to the slot of its key."""
    found = []
    for slot in range(n):
        claim(db, slot)
        while page := receive(db, slot, n, most=most):
            assert {slot_of(db, message[6], n) for message in page} == {slot}
            found += [message[3] for message in page]
            ack(db, slot, n)
    return found


def in_order(found: list[str]) -> dict[str, list[int]]:
    """The numbers of each key, in the order in which they came."""
    numbers: dict[str, list[int]] = {key: [] for key in KEYS}
    for text in found:
        key, number = text.split(": ")
        numbers[key].append(int(number))
    return numbers


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (1, 8), (3, 1)])
@pytest.mark.parametrize("policy", ["skip", "pause"])
def test_slots_at_different_places_hand_over_what_they_have_not_finished(
    db: Connection, before: int, after: int, policy: str
) -> None:
    queue_with_slots(db, before, policy=policy)
    found = []
    for number in range(4):
        publish_round(db, number)
        slot = number % before
        page = receive(db, slot, before, most=2)
        found += [message[3] for message in page]
        if page:
            ack(db, slot, before)
    send_keyed(db, *((key, f"{key}: 4") for key in KEYS))  # not ticked
    repartition(db, after)
    tick(db)
    publish_round(db, 5)
    found += consume(db, after, most=3)
    assert in_order(found) == {key: [0, 1, 2, 3, 4, 5] for key in KEYS}


def test_a_page_that_is_not_acked_comes_again(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    receive(db, 0, 2)
    repartition(db, 3)
    assert in_order(consume(db, 3)) == {key: [0] for key in KEYS}


def test_events_without_a_key_come_once(db: Connection) -> None:
    queue_with_slots(db, 2)
    for number in range(3):
        publish_keyed(db, (None, f"plain {number}"), ("k", f"keyed {number}"))
    page = receive(db, 0, 2, most=1)
    ack(db, 0, 2)
    repartition(db, 4)
    tick(db)
    found = [message[3] for message in page] + consume(db, 4)
    assert sorted(found) == [f"{kind} {n}" for kind in ("keyed", "plain") for n in range(3)]


@pytest.mark.parametrize("policy", ["skip", "pause"])
@pytest.mark.parametrize("moved", [False, True], ids=["waiting", "already moved"])
def test_failed_events_come_again_in_the_new_slots(
    db: Connection, policy: str, moved: bool
) -> None:
    queue_with_slots(db, 2, policy=policy)
    fail_each(db)
    if moved:
        value(db, "select pgque.maint_retry_events()")
    repartition(db, 5)
    value(db, "select pgque.maint_retry_events()")
    tick(db)
    assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}


def test_dead_letters_are_replayed_to_the_new_slots(db: Connection) -> None:
    queue_with_slots(db, 2, max_retries="0")
    fail_each(db)
    repartition(db, 5)
    assert rows(db, "select replayed, failed from pgque.dlq_replay_all('q')") == [(len(KEYS), 0)]
    tick(db)
    assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}


@pytest.mark.parametrize(("queue", "consumer"), [("q", "other"), ("elsewhere", "c")])
class TestAnotherConsumerWithAsManySlots:
    """It gets nothing that failed at this one."""

    @pytest.fixture
    def slots_of_the_other(self, db: Connection, queue: str, consumer: str) -> None:
        make_queue(db, consumers=())
        make_queue(db, "elsewhere", consumers=())
        for slot in range(5):
            value(db, "select pgque.subscribe_slot(%s, %s, %s, 5)", queue, consumer, slot)

    @pytest.mark.parametrize("policy", ["skip", "pause"])
    @pytest.mark.parametrize("moved", [False, True], ids=["waiting", "already moved"])
    def test_gets_no_retry(
        self, db: Connection, slots_of_the_other: None, policy: str, moved: bool
    ) -> None:
        queue_with_slots(db, 2, policy=policy)
        fail_each(db)
        if moved:
            value(db, "select pgque.maint_retry_events()")
        repartition(db, 5)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}

    def test_gets_no_dead_letter(self, db: Connection, slots_of_the_other: None) -> None:
        queue_with_slots(db, 2, max_retries="0")
        fail_each(db)
        repartition(db, 5)
        value(db, "select pgque.dlq_replay_all('q')")
        tick(db)
        assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}


@pytest.mark.parametrize(("queue", "consumer"), [("q", "other"), ("elsewhere", "c")])
@pytest.mark.parametrize(("policy", "retries"), [("skip", "5"), ("pause", "5"), ("skip", "0")])
def test_another_consumer_keeps_what_failed_in_its_slots(
    db: Connection, queue: str, consumer: str, policy: str, retries: str
) -> None:
    queue_with_slots(db, 2)
    before = consumer_with_failures(db, queue, consumer, 2, policy, max_retries=retries)
    repartition(db, 5)
    assert failures(db, queue, consumer) == before != []


def test_an_ack_that_is_not_committed_is_waited_for(db: Connection, another: Another) -> None:
    queue_with_slots(db, 1)
    publish_round(db, 0)
    worker = another()
    worker.execute("begin")
    receive(worker, 0, 1)
    ack(worker, 0, 1)
    carried: list[int] = []
    changing = threading.Thread(target=lambda: carried.append(repartition(db, 2)))
    changing.start()
    time.sleep(0.2)
    worker.execute("commit")
    changing.join(PATIENCE_SECONDS)
    tick(db)
    assert (carried, consume(db, 2)) == ([0], [])


def test_a_worker_of_an_earlier_slot_can_do_nothing_more(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    receive(db, 0, 2)
    receive(db, 1, 2)
    repartition(db, 1)
    with refused("PQ005", "has 1 slots, not 2", "pgque.repartition"):
        ack(db, 0, 2)
    with refused("PQ002"):
        ack(db, 1, 2)
    repartition(db, 2)
    with refused("PQ012"):
        ack(db, 0, 2)
    assert in_order(consume(db, 2)) == {key: [0] for key in KEYS}


def test_the_same_number_changes_nothing(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    receive(db, 0, 2)
    assert (repartition(db, 2), ack(db, 0, 2)) == (0, 1)


def test_a_rolled_back_change_leaves_the_slots(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    page = receive(db, 0, 2)
    with db.transaction(force_rollback=True):
        repartition(db, 3)
    assert (receive(db, 0, 2), ack(db, 0, 2)) == (page, 1)


@pytest.mark.parametrize("n", [0, 257, None])
def test_a_number_that_cannot_be_is_refused(db: Connection, n: int | None) -> None:
    queue_with_slots(db, 2)
    with refused("PQ005", '"c"'):
        value(db, "select pgque.repartition('q', 'c', %s::integer)", n)


def test_a_consumer_without_slots_is_named(db: Connection) -> None:
    make_queue(db)
    with refused("PQ002", '"c"', '"q"'):
        repartition(db, 2)
    with refused("PQ001", "nosuch"):
        value(db, "select pgque.repartition('nosuch', 'c', 2)")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_is_refused(db: Connection, level: str) -> None:
    queue_with_slots(db, 2)
    with refused("PQ013", level), db.transaction():
        db.execute(f"set transaction isolation level {level}".encode())
        repartition(db, 3)


def test_nothing_is_left_of_the_earlier_slots(db: Connection) -> None:
    queue_with_slots(db, 4)
    publish_round(db, 0)
    repartition(db, 2)
    assert rows(
        db,
        "select c.co_name from pgque.subscription_base s"
        " join pgque.consumer c on c.co_id = s.sub_consumer order by 1",
    ) == [("c#0/2",), ("c#1/2",)]


def test_other_consumers_and_queues_are_left_alone(db: Connection) -> None:
    queue_with_slots(db, 2)
    value(db, "select pgque.register_consumer('q', 'plain')")
    make_queue(db, "other")
    publish_round(db, 0)
    send(db, "elsewhere", queue="other")
    tick(db, "other")
    repartition(db, 3)
    batch = value(db, "select pgque.next_batch('q', 'plain')")
    assert len(rows(db, "select * from pgque.get_batch_events(%s)", batch)) == len(KEYS)


def test_events_are_handled_once_and_in_order_while_slots_change_under_load(
    db: Connection, database_url: str
) -> None:
    """Producers, the ticker, maintenance and workers go on; each page is acked with its results."""
    value(db, "select pgque.create_queue('q')")
    with Client(database_url) as client:
        PartitionedConsumer(client, "q", "c", slots=2).subscribe(0)
    db.execute("create table done (nr bigserial, ev_key text, number integer)")
    db.execute("update pgque.partition_slot_base set is_subscribed = true")
    over = threading.Event()
    failures: list[BaseException] = []
    rounds = 60

    def forever(step: Callable[[Connection, int], None], until: Callable[[int], bool]) -> None:
        try:
            with connect(database_url) as connection:
                number = 0
                while not until(number):
                    step(connection, number)
                    number += 1
        except BaseException as error:
            failures.append(error)
            over.set()

    def produce(connection: Connection, number: int) -> None:
        with connection.transaction():
            send_keyed(connection, *((key, str(number)) for key in KEYS))

    def keep_going(connection: Connection, number: int) -> None:
        tick(connection)
        value(connection, "select pgque.maint()")

    def work(connection: Connection, number: int) -> None:
        n = value(connection, "select n from pgque.partition_consumer")
        slot = number % n
        try:
            with connection.transaction():
                me = f"worker {connection.info.backend_pid}"
                if claim(connection, slot, me) is None:
                    return
                for message in receive(connection, slot, n, me, 7):
                    connection.execute(
                        "insert into done (ev_key, number) values (%s, %s)",
                        [message[6], int(message[3])],
                    )
                ack(connection, slot, n, me)
                value(
                    connection,
                    "select pgque.release_slot('q', 'c', %s, %s)",
                    slot,
                    me,
                )
        except Exception as error:
            if getattr(error, "sqlstate", None) not in {"PQ002", "PQ005", "PQ012", "40P01"}:
                raise

    never = over.is_set
    threads = [
        threading.Thread(target=forever, args=args)
        for args in (
            (produce, lambda number: number == rounds),
            (keep_going, lambda _: never()),
            (work, lambda _: never()),
            (work, lambda _: never()),
        )
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    counts = (5, 3, 8, 1, 2)
    turn = 0
    while (
        value(db, "select count(*) from done") < rounds * len(KEYS)
        and not over.is_set()
        and time.monotonic() < deadline
    ):
        try:
            repartition(db, counts[turn % len(counts)])
        except Exception as error:
            if getattr(error, "sqlstate", None) != "40P01":
                raise
        turn += 1
        time.sleep(0.3)
    over.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    handled = {
        key: [n for (n,) in rows(db, "select number from done where ev_key = %s order by nr", key)]
        for key in KEYS
    }
    assert (failures, handled) == ([], {key: list(range(rounds)) for key in KEYS})
