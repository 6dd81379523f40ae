"""Slots whose consumer gets another number of slots, or starts somewhere else."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.queues import Connection, connect, make_queue, refused, rows, tick, value
from tests.support.slot_batches import (
    KEYS,
    PATIENCE_SECONDS,
    drain,
    finish,
    in_order,
    keys_of,
    let_go,
    publish_round,
    read,
    subscribe,
    take,
    taken,
)
from tests.support.slots import (
    send_keyed,
    slot_of,
)


@pytest.fixture
def parted(db: Connection) -> Connection:
    """A queue whose consumer c has two slots."""
    make_queue(db, consumers=())
    subscribe(db)
    return db


class TestRepartition:
    def uneven(self, db: Connection) -> None:
        """Slot 0 has read nothing, slot 1 all of two rounds; then there are three slots."""
        publish_round(db, 0)
        finish(db, taken(db, 1))
        publish_round(db, 1)
        finish(db, taken(db, 1))
        assert value(db, "select pgque.repartition('q', 'c', 3)") == 2 * len(keys_of(db, 0))

    def test_carried_events_come_before_later_ones(self, parted: Connection) -> None:
        behind = keys_of(parted, 0)
        self.uneven(parted)
        publish_round(parted, 2)
        assert in_order(drain(parted, 3)) == {
            key: [0, 1, 2] if key in behind else [2] for key in KEYS
        }

    def test_carried_events_are_due_at_once(self, parted: Connection) -> None:
        self.uneven(parted)
        due = rows(
            parted,
            "select is_due from pgque.consumer_states('{q}', '{c}', i_min_count => 1000)"
            " where sub_role = 'slot'",
        )
        assert (True,) in due

    def test_a_batch_of_carried_events_is_the_same_at_each_attempt(
        self, parted: Connection
    ) -> None:
        behind = keys_of(parted, 0)
        self.uneven(parted)
        slot = slot_of(parted, behind[0], 3)
        claimed = taken(parted, slot, 3)
        first = read(parted, claimed)
        let_go(parted, claimed)
        publish_round(parted, 2)
        again = taken(parted, slot, 3, owner="other")
        assert (again.batch, read(parted, again)) == (claimed.batch, first)

    def test_a_batch_of_carried_events_that_is_over_is_not_read_as_empty(
        self, parted: Connection
    ) -> None:
        behind = keys_of(parted, 0)
        self.uneven(parted)
        claimed = taken(parted, slot_of(parted, behind[0], 3), 3)
        ((planned,),) = rows(
            parted, "select slice_sql from pgque.batch_read_plan(%s, 1)", claimed.batch
        )
        finish(parted, claimed)
        with refused("PQ003"):
            rows(parted, planned)

    def test_carried_events_come_in_several_batches_if_they_are_many(
        self, parted: Connection
    ) -> None:
        behind = keys_of(parted, 0)
        self.uneven(parted)
        publish_round(parted, 2)
        assert in_order(drain(parted, 3, most=2)) == {
            key: [0, 1, 2] if key in behind else [2] for key in KEYS
        }

    def test_carried_events_can_be_given_up(self, parted: Connection) -> None:
        behind = keys_of(parted, 0)
        self.uneven(parted)
        claimed = taken(parted, slot_of(parted, behind[0], 3), 3)
        expected = len(read(parted, claimed))
        assert value(parted, "select pgque.give_up_batch(%s, 'x', %s, %s)", *claimed) == expected
        assert len(drain(parted, 3)) == 2 * len(behind) - expected

    def test_expired_events_are_left_out_of_each_read(self, parted: Connection) -> None:
        self.uneven(parted)
        value(parted, "select pgque.set_queue_config('q', 'event_ttl', '1 hour')")
        parted.execute("update pgque.partition_held set ev_time = now() - interval '2 hours'")
        assert drain(parted, 3) == []
        assert value(parted, "select count(*) from pgque.partition_held") == 0

    def test_an_open_batch_refuses_another_number(self, parted: Connection) -> None:
        """Its results may be stored under its id, so its events must not come under another."""
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        let_go(parted, claimed)
        with refused("PQ016", f'slot 0 of consumer "c" on queue "q" has batch {claimed.batch}'):
            value(parted, "select pgque.repartition('q', 'c', 3)")
        finish(parted, taken(parted, 0))
        value(parted, "select pgque.repartition('q', 'c', 3)")

    def test_a_claim_of_an_earlier_slot_is_refused(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        finish(parted, claimed)
        for n in (3, 2):
            value(parted, "select pgque.repartition('q', 'c', %s)", n)
        publish_round(parted, 1)
        with refused("PQ003", f"batch {claimed.batch}"):
            take(parted, 0, batch=claimed.batch)
        with refused("PQ002"):
            take(parted, 2, 3)

    def test_the_deployment_stays(self, parted: Connection) -> None:
        enter = "select pgque.enter_deployment('q', 'c', %s)"
        assert [value(parted, enter, "production") for _ in range(2)] == [1, 0]
        value(parted, "select pgque.repartition('q', 'c', 3)")
        with refused("PQ024", "production", "laptop"):
            value(parted, enter, "laptop")
        move = "select pgque.move_to_deployment('q', 'c', %s)"
        assert value(parted, move, "laptop") == "production"
        assert value(parted, enter, "laptop") == 0
        states = "select distinct deployment from pgque.consumer_states('{q}', '{c}')"
        assert rows(parted, states) == [("laptop",)]


class TestSubscribing:
    def test_all_slots_start_at_the_position(self, db: Connection) -> None:
        make_queue(db, consumers=("keeper",))
        publish_round(db, 0)
        assert [subscribe(db, 4, "earliest"), subscribe(db, 4, "latest")] == [1, 0]
        assert in_order(drain(db, 4)) == {key: [0] for key in KEYS}

    def test_without_a_position_they_start_at_the_last_tick(self, db: Connection) -> None:
        make_queue(db, consumers=("keeper",))
        publish_round(db, 0)
        subscribe(db, 4)
        publish_round(db, 1)
        assert in_order(drain(db, 4)) == {key: [1] for key in KEYS}

    @pytest.mark.parametrize("n", [0, 257, None])
    def test_an_impossible_number_is_refused(self, db: Connection, n: int | None) -> None:
        make_queue(db, consumers=())
        with refused("PQ005", "1 to 256 slots"):
            value(db, "select pgque.subscribe_slots('q', 'c', %s::integer)", n)

    def test_another_number_is_refused(self, parted: Connection) -> None:
        with refused("PQ005", "has 2 slots, not 3", "pgque.repartition"):
            subscribe(parted, 3)

    def test_a_consumer_without_slots_gets_none(self, db: Connection) -> None:
        """Its position would be forgotten. The hint moves it."""
        make_queue(db, consumers=("c",))
        publish_round(db, 0)
        with pytest.raises(Exception, match="is registered without slots") as caught:
            subscribe(db, 2)
        hint = caught.value.diag.message_hint  # type: ignore[attr-defined]
        statements = hint.partition("transaction: ")[2].replace("slots, '", "2, '")
        with db.transaction():
            db.execute(statements.encode())
        assert in_order(drain(db, 2)) == {key: [0] for key in KEYS}

    def test_a_consumer_with_slots_is_not_registered_without(self, parted: Connection) -> None:
        with refused("PQ015", '"c"', "unsubscribe_slot"):
            value(parted, "select pgque.register_consumer('q', 'c')")


def test_keys_keep_their_order_while_runs_die_and_slots_change_under_load(
    db: Connection, database_url: str
) -> None:
    """Each batch is stored under its id, as sinks do, and then acked; some runs die between."""
    value(db, "select pgque.create_queue('q')")
    subscribe(db, 2)
    db.execute("create table stored (batch bigint, nr bigserial, ev_key text, number integer)")
    over, may_open = threading.Event(), threading.Event()
    may_open.set()
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
        is_open = value(
            connection,
            "select exists (select from pgque.slot_state"
            " where slot = %s and sub_batch is not null)",
            slot,
        )
        if not is_open and not may_open.is_set():
            return
        try:
            claimed = take(connection, slot, n, f"run {number} {id(connection)}", "300 ms", most=50)
            if claimed is None:
                return
            found = rows(
                connection,
                "select ev_extra1, ev_data::integer from pgque.get_batch_events(%s)",
                claimed.batch,
            )
            with connection.transaction():  # replaces what an earlier attempt stored
                connection.execute("delete from stored where batch = %s", [claimed.batch])
                for key, event in found:
                    connection.execute(
                        "insert into stored (batch, ev_key, number) values (%s, %s, %s)",
                        [claimed.batch, key, event],
                    )
                value(connection, "select pgque.renew_batch(%s, %s, %s, '300 ms')", *claimed)
            if number % 7:
                finish(connection, claimed)
        except Exception as error:
            if getattr(error, "sqlstate", "") not in {"PQ002", "PQ003", "PQ004", "PQ012", "40P01"}:
                raise

    threads = [
        threading.Thread(target=forever, args=args)
        for args in (
            (produce, lambda number: number == rounds),
            (keep_going, lambda _: over.is_set()),
            (work, lambda _: over.is_set()),
            (work, lambda _: over.is_set()),
        )
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    counts, changes = (5, 3, 8, 1, 2), 0
    while (
        value(db, "select count(distinct (ev_key, number)) from stored") < rounds * len(KEYS)
        or value(db, "select count(*) from pgque.slot_state where sub_batch is not null")
    ) and not over.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.2)
        may_open.clear()  # as the sensor does: open batches end, then the slots change
        try:
            value(db, "select pgque.repartition('q', 'c', %s)", counts[changes % len(counts)])
            changes += 1
            may_open.set()
        except Exception as error:
            if getattr(error, "sqlstate", "") not in {"PQ016", "40P01"}:
                raise
    over.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    stored = {
        key: [
            n for (n,) in rows(db, "select number from stored where ev_key = %s order by nr", key)
        ]
        for key in KEYS
    }
    assert failures == []
    assert stored == {key: list(range(rounds)) for key in KEYS}
    assert changes > 0
