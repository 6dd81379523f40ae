"""Slots read by batches: claim, read, ack and release with the functions of normal consumers."""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.queues import Connection, connect, make_queue, refused, rows, tick, value
from tests.support.slots import (
    ack,
    claim,
    expire,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    send_keyed,
    slot_of,
    texts,
)

KEYS = [f"key {number}" for number in range(12)]
PATIENCE_SECONDS = 120


class Claim(NamedTuple):
    batch: int
    owner: str
    epoch: int


def subscribe(db: Connection, n: int = 2, start_at: str | None = None) -> int:
    new: int = value(db, "select pgque.subscribe_slots('q', 'c', %s, %s)", n, start_at)
    return new


def take(
    db: Connection,
    slot: int = 0,
    n: int = 2,
    owner: str = "run",
    ttl: str = "1 minute",
    batch: int | None = None,
    most: int | None = None,
) -> Claim | None:
    """Claims the slot's batch; None if it has none."""
    ((found, epoch),) = rows(
        db,
        "select batch_id, epoch from pgque.claim_batch('q', %s, %s, %s, i_batch_id => %s,"
        " i_max_count => %s)",
        f"c#{slot}/{n}",
        owner,
        ttl,
        batch,
        most,
    )
    return None if found is None else Claim(found, owner, epoch)


def taken(db: Connection, slot: int = 0, n: int = 2, **more: Any) -> Claim:
    claimed = take(db, slot, n, **more)
    assert claimed is not None
    return claimed


def let_go(db: Connection, claimed: Claim) -> None:
    value(db, "select pgque.release_batch(%s, %s, %s)", *claimed)


def finish(db: Connection, claimed: Claim) -> None:
    value(db, "select pgque.ack_batch(%s, %s, %s)", *claimed)


def read(db: Connection, claimed: Claim) -> list[str]:
    """The batch's payloads in order of id, the same by each way of reading."""
    by_rows = rows(db, "select ev_id, ev_data from pgque.get_batch_events(%s)", claimed.batch)
    plan = rows(
        db, "select slice_sql, batch_events from pgque.batch_read_plan(%s, 3)", claimed.batch
    )
    by_slices = [
        row for sql, _ in plan for row in rows(db, f"select ev_id, ev_data from ({sql}) s")
    ]
    assert sorted(by_slices) == by_rows
    assert {planned for _, planned in plan} <= {len(by_rows)}
    assert value(db, "select pgque.batch_has_events(%s)", claimed.batch) is bool(by_rows)
    return [payload for _, payload in by_rows]


def drain(db: Connection, n: int, most: int | None = None) -> list[str]:
    """All that the slots have, slot by slot, acked."""
    found: list[str] = []
    for slot in range(n):
        while claimed := take(db, slot, n, most=most):
            found += read(db, claimed)
            finish(db, claimed)
    return found


def publish_round(db: Connection, number: int) -> None:
    publish_keyed(db, *((key, f"{key}: {number}") for key in KEYS))


def in_order(found: list[str]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {key: [] for key in KEYS}
    for text in found:
        key, number = text.split(": ")
        numbers[key].append(int(number))
    return numbers


def keys_of(db: Connection, slot: int, n: int = 2) -> list[str]:
    return [key for key in KEYS if slot_of(db, key, n) == slot]


@pytest.fixture
def parted(db: Connection) -> Connection:
    """A queue whose consumer c has two slots."""
    make_queue(db, consumers=())
    subscribe(db)
    return db


class TestBatches:
    def test_a_batch_of_a_slot_has_the_events_of_its_keys_only(self, parted: Connection) -> None:
        publish_round(parted, 0)
        for slot in (0, 1):
            found = read(parted, taken(parted, slot))
            assert found == [f"{key}: 0" for key in keys_of(parted, slot)]

    def test_events_without_a_key_are_in_slot_0(self, parted: Connection) -> None:
        publish_keyed(parted, (None, "plain"))
        assert read(parted, taken(parted, 0)) == ["plain"]
        assert read(parted, taken(parted, 1)) == []

    def test_slots_have_batches_of_different_ids(self, parted: Connection) -> None:
        publish_round(parted, 0)
        assert taken(parted, 0).batch != taken(parted, 1).batch

    def test_a_slot_that_is_not_acked_holds_up_itself_alone(self, parted: Connection) -> None:
        publish_round(parted, 0)
        failing = taken(parted, 0)
        let_go(parted, failing)
        finish(parted, taken(parted, 1))
        publish_round(parted, 1)
        assert read(parted, taken(parted, 1)) == [f"{key}: 1" for key in keys_of(parted, 1)]
        again = taken(parted, 0)
        assert again.batch == failing.batch
        assert read(parted, again) == [f"{key}: 0" for key in keys_of(parted, 0)]

    def test_a_takeover_refuses_the_earlier_holder(self, parted: Connection) -> None:
        publish_round(parted, 0)
        stale = taken(parted, 0, owner="stale")
        expire(parted, 0)
        fresh = taken(parted, 0, owner="fresh", batch=stale.batch)
        for call in ("ack_batch", "renew_batch", "release_batch"):
            with refused("PQ012", "fresh"):
                value(parted, f"select pgque.{call}(%s, %s, %s)", *stale)
        finish(parted, fresh)

    def test_an_ack_leaves_the_slot_free(self, parted: Connection) -> None:
        publish_round(parted, 0)
        finish(parted, taken(parted, 0, owner="one"))
        publish_round(parted, 1)
        assert taken(parted, 0, owner="other")

    def test_events_are_dead_lettered_for_the_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        given_up = value(parted, "select pgque.give_up_batch(%s, 'bad', %s, %s)", *claimed)
        assert given_up == len(keys_of(parted, 0))
        assert rows(parted, "select consumer_name, dead_letters from pgque.dlq_summary('q')") == [
            ("c#0/2", given_up)
        ]
        assert take(parted, 0) is None

    def test_a_batch_can_be_held(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        let_go(parted, claimed)
        value(parted, "select pgque.hold_batch(%s, %s, 'why')", claimed.batch, claimed.epoch)
        assert rows(
            parted,
            "select subconsumer_name, held_reason from pgque.consumer_states('{q}', '{c}')"
            " where held_reason is not null",
        ) == [("0/2", "why")]

    def test_the_states_name_each_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 1)
        assert rows(
            parted,
            "select consumer_name, subconsumer_name, sub_role, batch_id, is_due"
            " from pgque.consumer_states('{q}', '{c}')",
        ) == [
            ("c", None, "partitioned", None, False),
            ("c", "0/2", "slot", None, True),
            ("c", "1/2", "slot", claimed.batch, False),
        ]


class TestPages:
    """A worker's pages and whole batches of one slot exclude each other by the lease."""

    def test_a_worker_keeps_batches_off_its_slot(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"))
        with refused("PQ004", 'the slot of q/c#0/1 is leased by "w"'):
            take(db, 0, 1)
        receive(db, 0, 1)
        with refused("PQ004", 'is leased by "w"'):
            take(db, 0, 1)

    def test_a_batch_keeps_workers_off_the_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        taken(parted, 0)
        assert claim(parted, 0) is None

    def test_a_batch_goes_on_after_the_last_acked_page(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"), ("k", "c"))
        receive(db, 0, 1, most=1)
        ack(db, 0, 1)
        receive(db, 0, 1, most=1)
        release(db, 0)
        assert read(db, taken(db, 0, 1)) == ["b", "c"]

    @pytest.mark.parametrize("ends", [let_go, lambda db, claimed: expire(db, 0)])
    def test_no_worker_gets_a_slot_with_an_open_batch(
        self, parted: Connection, ends: Callable[[Connection, Claim], None]
    ) -> None:
        """Its results may be stored under its id, so its next attempt must have the same events."""
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        first = read(parted, claimed)
        ends(parted, claimed)
        assert [claim(parted, 0, worker) for worker in ("w", "run")] == [None, None]
        again = taken(parted, 0)
        assert (again.batch, read(parted, again)) == (claimed.batch, first)

    def test_a_worker_gets_what_follows_an_acked_batch(self, parted: Connection) -> None:
        publish_round(parted, 0)
        finish(parted, taken(parted, 0))
        publish_round(parted, 1)
        assert claim(parted, 0) is not None
        assert texts(receive(parted, 0)) == [f"{key}: 1" for key in keys_of(parted, 0)]

    def test_an_open_batch_stays_as_it_is_when_a_held_event_becomes_due(
        self, db: Connection
    ) -> None:
        queue_with_slots(db, 1, policy="pause")
        first, *_ = publish_keyed(db, ("k", "k1"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="1 hour")
        ack(db, 0, 1)
        release(db, 0)
        publish_keyed(db, ("k", "k2"), ("l", "l1"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["l1"]
        let_go(db, claimed)
        db.execute("update pgque.partition_held set retry_after = now()")
        if claim(db, 0) is not None:
            receive(db, 0, 1)
            ack(db, 0, 1)
            release(db, 0)
        assert read(db, taken(db, 0, 1)) == ["l1"]

    def test_events_behind_a_paused_one_come_after_it(self, db: Connection) -> None:
        queue_with_slots(db, 1, policy="pause")
        first, *_ = publish_keyed(db, ("k", "a"), ("l", "x"), ("k", "b"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="1 hour")
        release(db, 0)
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["x"]
        finish(db, claimed)
        publish_keyed(db, ("k", "c"), ("l", "y"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["y"]
        finish(db, claimed)
        db.execute(
            "update pgque.partition_held set retry_after = now() where retry_after is not null"
        )
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["a", "b", "c"]
        finish(db, claimed)
        assert take(db, 0, 1) is None


class TestExpiry:
    def with_a_failed_event(self, db: Connection) -> None:
        """Event a waits for an hour, b behind it; a expires."""
        queue_with_slots(db, 1, policy="pause", event_ttl="1 hour")
        first, *_ = publish_keyed(db, ("k", "a"), ("k", "b"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="2 hours")
        ack(db, 0, 1)
        release(db, 0)
        assert take(db, 0, 1) is None
        assert self.is_due(db) is False
        db.execute(
            "update pgque.partition_held set ev_time = ev_time - interval '2 hours'"
            " where ev_data = 'a'"
        )

    def is_due(self, db: Connection) -> bool:
        due: bool = value(
            db,
            "select is_due from pgque.consumer_states('{q}', '{c}', i_min_count => 1000)"
            " where sub_role = 'slot'",
        )
        return due

    def test_an_expired_event_lets_those_behind_it_go_on(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["b"]
        finish(db, claimed)
        assert value(db, "select count(*) from pgque.partition_held") == 0

    def test_later_events_of_its_key_go_on_too(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("delete from pgque.partition_held where ev_data = 'b'")
        publish_keyed(db, ("k", "c"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["c"]

    def test_a_slot_is_due_for_what_expires(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        assert self.is_due(db) is True
        finish(db, taken(db, 0, 1))
        assert self.is_due(db) is False

    def test_a_claim_that_finds_nothing_else_drops_what_expired(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("delete from pgque.partition_held where ev_data = 'b'")
        assert self.is_due(db) is True
        assert take(db, 0, 1) is None
        assert self.is_due(db) is False
        assert value(db, "select count(*) from pgque.partition_held") == 0

    def test_a_batch_that_is_open_does_not_grow(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("update pgque.partition_held set ev_time = now() where ev_data = 'a'")
        publish_keyed(db, ("k", "c"), ("l", "x"))
        claimed = taken(db, 0, 1)
        db.execute("update pgque.partition_held set ev_time = now() - interval '2 hours'")
        let_go(db, claimed)
        assert read(db, taken(db, 0, 1)) == ["x"]


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
