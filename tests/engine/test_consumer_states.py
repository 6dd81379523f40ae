"""Consumers' states in one answer, batches that are given up or held, and deployments."""

from typing import Any

import pytest

from tests.support.metrics import health
from tests.support.queues import (
    Connection,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.races import Another, race
from tests.support.workers import register

STATES = "from pgque.consumer_states(%s::text[], %s::text[]"


def states(db: Connection, consumers: str, columns: str = "*", **limits: Any) -> list[Any]:
    """Of consumers, each as queue/consumer."""
    queues, names = zip(*(each.split("/") for each in consumers.split()), strict=True)
    named = "".join(f", {name} => %s" for name in limits)
    sql = f"select {columns} {STATES}{named})"
    return rows(db, sql, list(queues), list(names), *limits.values())


def state(db: Connection, columns: str, **limits: Any) -> tuple[Any, ...]:
    (only,) = states(db, "q/c", columns=columns, **limits)
    return only


def claim(db: Connection, owner: str = "me", ttl: str = "1 minute") -> tuple[Any, ...]:
    sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s)"
    ((batch, epoch),) = rows(db, sql, owner, ttl)
    return batch, owner, epoch


@pytest.fixture
def queue(db: Connection) -> Connection:
    """With one batch of two events that nobody has opened."""
    make_queue(db)
    send(db, "x", "y")
    tick(db)
    return db


def test_each_pair_gets_a_row_in_the_order_given(db: Connection) -> None:
    make_queue(db, consumers=("a", "b"))
    columns = "queue_name, consumer_name, queue_exists, sub_role"
    assert states(db, "q/b nosuch/b q/nobody q/a", columns) == [
        ("q", "b", True, "normal"),
        ("nosuch", "b", False, None),
        ("q", "nobody", True, None),
        ("q", "a", True, "normal"),
    ]


def test_an_open_batch_is_told_with_its_lease(queue: Connection) -> None:
    batch, _, _ = claim(queue)
    columns = "batch_id, lease_owner, lease_until > now(), is_live, is_due"
    assert state(queue, columns) == (batch, "me", True, True, False)


def test_a_lease_that_ran_out_is_not_live(queue: Connection) -> None:
    claim(queue, ttl="1 microsecond")
    assert state(queue, "lease_owner, is_live") == ("me", False)


def test_a_consumer_is_due_once_a_tick_meets_the_limits(db: Connection) -> None:
    make_queue(db)
    before = state(db, "is_due")
    send(db, "x", "y")
    tick(db)
    positions = value(db, "select count(*) from pgque.position_log")
    found = [state(db, "is_due", i_min_count=count) for count in (2, 3)]
    assert (before, found) == ((False,), [(True,), (False,)])
    with refused("PQ005", "max_count 0"):
        state(db, "*", i_max_count=0)
    # To look opens nothing.
    assert state(db, "batch_id, is_due") == (None, True)
    assert value(db, "select count(*) from pgque.position_log") == positions


def test_subconsumers_follow_the_consumer_that_they_share(db: Connection) -> None:
    make_queue(db, consumers=("other",))
    for name in ("2", "1"):
        register(db, name)
    send(db, "x")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', '2')")
    columns = "consumer_name, subconsumer_name, sub_role, batch_id, is_due"
    assert states(db, "q/c q/other", columns) == [
        ("c", None, "coop_main", None, False),
        ("c", "1", "coop_member", None, False),
        ("c", "2", "coop_member", batch, False),
        ("other", None, "normal", None, True),
    ]


def test_queues_without_as_many_consumers_are_refused(db: Connection) -> None:
    for queues, consumers in ((["q"], []), (None, ["c"]), (["q"], None), (None, None)):
        with refused("PQ005", "consumers"):
            rows(db, f"select {STATES})", queues, consumers)


@pytest.mark.parametrize("texts", [(), ("x",)])
def test_a_batch_with_an_event_is_told_from_an_empty_one(
    db: Connection, texts: tuple[str, ...]
) -> None:
    make_queue(db)
    batch = open_batch(db, *texts)
    assert value(db, "select pgque.batch_has_events(%s)", batch) is bool(texts)


class TestGivingABatchUp:
    LETTERS = "select ev_data, dl_reason from pgque.dlq_inspect('q') order by 1"

    def give_up(self, db: Connection, *claimed: Any) -> int:
        number: int = value(db, "select pgque.give_up_batch(%s, 'too often', %s, %s)", *claimed)
        return number

    def test_makes_dead_letters_and_acks_it(self, queue: Connection) -> None:
        assert self.give_up(queue, *claim(queue)) == 2
        assert rows(queue, self.LETTERS) == [("x", "too often"), ("y", "too often")]
        assert next_batch(queue) is None
        assert payloads(queue, open_batch(queue, "z")) == ["z"]

    def test_is_the_holders(self, queue: Connection) -> None:
        lost = claim(queue, "first", ttl="1 microsecond")
        claim(queue, "second")
        with refused("PQ012", 'not leased by "first"'):
            self.give_up(queue, *lost)
        assert (rows(queue, self.LETTERS), state(queue, "batch_id")) == ([], (lost[0],))

    def test_is_nobodys_without_a_claim(self, queue: Connection) -> None:
        batch = next_batch(queue)
        with refused("PQ012", "nobody has its lease"):
            self.give_up(queue, batch, "me", 1)

    def test_makes_no_dead_letter_of_an_empty_one(self, db: Connection) -> None:
        make_queue(db)
        tick(db)
        assert (self.give_up(db, *claim(db)), rows(db, self.LETTERS)) == (0, [])


def hold(db: Connection, batch: Any, epoch: int = 0, reason: str | None = "it failed") -> int:
    held: int = value(db, "select pgque.hold_batch(%s, %s, %s)", batch, epoch, reason)
    return held


class TestAHeldBatch:
    """All attempts at it failed, and health says so until somebody looks into it."""

    @pytest.fixture
    def batch(self, queue: Connection) -> Any:
        """Open, and with no lease."""
        return next_batch(queue)

    def held(self, db: Connection) -> tuple[str, str | None]:
        return health(db)["held_batch:c"][0], state(db, "held_reason")[0]

    def test_is_critical_with_its_consumer_its_number_and_the_reason(
        self, db: Connection, batch: Any
    ) -> None:
        assert health(db)["held_batch:c"] == ("ok", "no batch is parked")
        assert hold(db, batch) == 1
        detail = health(db)["held_batch:c"][1]
        assert detail.startswith(f'batch {batch} of "c" is parked since 20')
        assert detail.endswith("what follows it waits: it failed")
        assert self.held(db) == ("critical", "it failed")
        # Under the same epoch, once.
        assert hold(db, batch, reason="another") == 0
        assert self.held(db) == ("critical", "it failed")

    def test_is_held_no_more_after_a_claim_and_again_under_its_epoch(
        self, db: Connection, batch: Any
    ) -> None:
        hold(db, batch)
        _, _, epoch = claim(db, ttl="1 microsecond")
        assert self.held(db) == ("ok", None)
        words = (f"batch {batch} is not parked: it is under epoch 1, not 0", "count them again")
        with refused("PQ012", *words):
            hold(db, batch)
        assert hold(db, batch, epoch, "a run by hand failed, too") == 1
        assert self.held(db) == ("critical", "a run by hand failed, too")

    def test_is_not_held_while_its_owner_works_on_it(self, db: Connection, batch: Any) -> None:
        _, _, epoch = claim(db)
        with refused("PQ012", f'batch {batch} is not parked: "me" works on it until'):
            hold(db, batch, epoch)

    def test_ends_its_hold_with_its_end(self, db: Connection, batch: Any) -> None:
        hold(db, batch)
        finish(db, batch)
        assert self.held(db)[0] == "ok"
        with refused("PQ003", str(batch)):
            hold(db, batch)
        open_batch(db, "b")
        assert self.held(db)[0] == "ok"

    def test_is_none_that_somebody_works_on(self, queue: Connection) -> None:
        batch, _, epoch = claim(queue)
        with refused("PQ012", '"me" works on it until'):
            hold(queue, batch, epoch)

    def test_has_a_reason(self, db: Connection, batch: Any) -> None:
        with refused("PQ005", f"no reason to park batch {batch}"):
            hold(db, batch, reason="")

    def test_of_a_subconsumer_is_held_by_itself(self, db: Connection) -> None:
        make_queue(db, consumers=())
        register(db, "one")
        send(db, "a")
        tick(db)
        hold(db, value(db, "select pgque.next_batch('q', 'c', 'one')"))
        found = health(db)
        assert found["held_batch:c.one"][0] == "critical"
        assert found["held_batch:c"][0] == "ok"

    def test_goes_with_its_consumer(self, db: Connection, batch: Any) -> None:
        hold(db, batch)
        value(db, "select pgque.unregister_consumer('q', 'c')")
        assert rows(db, "select * from pgque.held_batch") == []


def test_the_epoch_grows_with_each_claim_and_not_with_a_renewal_or_an_ack(
    queue: Connection,
) -> None:
    assert state(queue, "lease_epoch") == (0,)
    claimed = claim(queue)
    value(queue, "select pgque.renew_batch(%s, %s, %s)::text", *claimed)
    value(queue, "select pgque.ack_batch(%s, %s, %s)", *claimed)
    assert (claimed[2], state(queue, "lease_epoch")) == (1, (1,))
    tick(queue)
    claim(queue)
    assert state(queue, "lease_epoch") == (2,)


ENTER = "select pgque.enter_deployment('q', 'c', %s)"
MOVE = "select pgque.move_to_deployment('q', 'c', %s)"
DEPLOYMENTS = "select deployment from pgque.consumer_states(%s::text[], %s::text[])"


def test_the_first_deployment_gets_the_consumer_and_another_one_is_told_how_to_move_it(
    db: Connection,
) -> None:
    make_queue(db)
    assert [value(db, ENTER, "production") for _ in range(2)] == [1, 0]
    with refused(
        "PQ024",
        'belongs to deployment "production"',
        'this is deployment "laptop"',
        "select pgque.move_to_deployment('q', 'c', 'laptop');",
    ):
        value(db, ENTER, "laptop")


def test_a_consumer_that_is_moved_belongs_to_the_other_one(db: Connection) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    since = "select since from pgque.consumer_deployment"
    before = value(db, since)
    value(db, MOVE, "production")
    assert value(db, since) == before
    assert value(db, MOVE, "laptop") == "production"
    assert value(db, ENTER, "laptop") == 0
    with refused("PQ024", 'belongs to deployment "laptop"'):
        value(db, ENTER, "production")


def test_a_consumer_of_nobody_may_be_moved_and_one_may_stay(db: Connection) -> None:
    make_queue(db)
    assert [value(db, MOVE, "production") for _ in range(2)] == [None, None]
    assert value(db, ENTER, "production") == 0


def test_a_consumer_that_is_registered_again_belongs_to_nobody(db: Connection) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    value(db, "select pgque.unregister_consumer('q', 'c')")
    value(db, "select pgque.register_consumer('q', 'c')")
    assert value(db, ENTER, "laptop") == 1


def test_of_two_that_ask_at_once_one_is_refused(db: Connection, another: Another) -> None:
    make_queue(db)
    _, asked = race(
        another,
        lambda one: value(one, ENTER, "production"),
        lambda two: value(two, ENTER, "laptop"),
    )
    with refused("PQ024"):
        asked.result()


@pytest.mark.parametrize("call", [ENTER, MOVE])
def test_a_deployment_gets_all_slots_while_their_number_changes(
    db: Connection, another: Another, call: str
) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.subscribe_slots('q', 'c', 2)")
    change = "select pgque.repartition('q', 'c', %s)"
    _, changed = race(
        another, lambda one: value(one, call, "production"), lambda two: value(two, change, 3)
    )
    changed.result()
    _, asked = race(
        another, lambda one: value(one, change, 4), lambda two: value(two, call, "production")
    )
    asked.result()
    assert rows(
        db,
        "select d.deployment, count(*) from pgque.partition_slot_base b"
        " left join pgque.consumer_deployment d using (sub_id) group by 1",
    ) == [("production", 4)]


@pytest.mark.parametrize("function", ["enter_deployment", "move_to_deployment"])
def test_a_subconsumer_belongs_where_its_consumer_does(db: Connection, function: str) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    value(db, "select pgque.register_subconsumer('q', 'c', 'w', true)")
    found = rows(db, DEPLOYMENTS, ["q", "q"], ["c", "nobody"])
    assert found == [("production",), ("production",), (None,)]
    with refused("PQ015"):
        value(db, f"select pgque.{function}('q', 'c.w', 'production')")
    with refused("PQ005", "no deployment"):
        value(db, f"select pgque.{function}('q', 'c', '')")


def test_the_state_of_a_partitioned_consumer_names_its_own_deployment(db: Connection) -> None:
    make_queue(db, consumers=("other",))
    value(db, "select pgque.subscribe_slots('q', 'c', 2)")
    value(db, "select pgque.enter_deployment('q', 'other', 'another')")
    before = rows(db, DEPLOYMENTS, ["q"], ["c"])
    value(db, ENTER, "production")
    found = rows(db, DEPLOYMENTS, ["q"], ["c"])
    assert (before, found) == ([(None,)] * 3, [("production",)] * 3)
