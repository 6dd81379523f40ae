"""Consumers' states in one answer, batches that are given up or held, and deployments."""

from typing import Any

import pytest

from tests.support.queues.metrics import health
from tests.support.queues.races import race
from tests.support.queues.sql import Connection, connect, refused
from tests.support.queues.workers import register

STATES = "from pgque.consumer_states(%s::text[], %s::text[]"


def states(db: Connection, consumers: str, columns: str = "*", **limits: Any) -> list[Any]:
    """Of consumers, each as queue/consumer."""
    queues, names = zip(*(each.split("/") for each in consumers.split()), strict=True)
    named = "".join(f", {name} => %s" for name in limits)
    sql = f"select {columns} {STATES}{named})"
    return db.rows(sql, list(queues), list(names), *limits.values())


def state(db: Connection, columns: str, **limits: Any) -> tuple[Any, ...]:
    (only,) = states(db, "q/c", columns=columns, **limits)
    return only


def claim(db: Connection, owner: str = "me", ttl: str = "1 minute") -> tuple[Any, ...]:
    sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s)"
    ((batch, epoch),) = db.rows(sql, owner, ttl)
    return batch, owner, epoch


@pytest.fixture
def queue(db: Connection) -> Connection:
    """With one batch of two events that nobody has opened."""
    db.make_queue()
    db.publish("x", "y")
    return db


def test_each_pair_gets_a_row_in_the_order_given(db: Connection) -> None:
    db.make_queue(consumers=("a", "b"))
    columns = "queue_name, consumer_name, queue_exists, sub_role"
    assert states(db, "q/b nosuch/b q/nobody q/a", columns) == [
        ("q", "b", True, "normal"),
        ("nosuch", "b", False, None),
        ("q", "nobody", True, None),
        ("q", "a", True, "normal"),
    ]


def test_an_open_batch_is_told_with_its_lease(queue: Connection) -> None:
    batch = queue.next_batch()
    assert state(queue, "batch_id, lease_owner, is_live") == (batch, None, False)
    claim(queue, ttl="1 microsecond")
    assert state(queue, "lease_owner, is_live") == ("me", False)
    claim(queue)
    columns = "batch_id, lease_owner, lease_until > now(), is_live, is_due"
    assert state(queue, columns) == (batch, "me", True, True, False)


def test_a_consumer_is_due_once_a_tick_meets_the_limits(q: Connection) -> None:
    before = state(q, "is_due")
    q.publish("x", "y")
    positions = q.value("select count(*) from pgque.position_log")
    found = [state(q, "is_due", i_min_count=count) for count in (2, 3)]
    assert (before, found) == ((False,), [(True,), (False,)])
    with refused("PQ005", "max_count 0"):
        state(q, "*", i_max_count=0)
    # To look opens nothing.
    assert state(q, "batch_id, is_due") == (None, True)
    assert q.value("select count(*) from pgque.position_log") == positions


def test_an_event_that_a_tick_left_behind_waits_for_no_other(db: Connection) -> None:
    """Its id is counted by the tick before its transaction ended."""
    db.make_queue(ticker_max_lag="0")
    limits = {"i_min_count": 1, "i_min_interval": "1 hour"}
    with connect(db.url) as late, late.transaction():
        late.send("late")
        db.tick()
        assert db.value("select left_some from pgque.tick order by tick_id desc limit 1")
        db.finish(db.next_batch())
        db.tick()
        assert state(db, "is_due", **limits) == (False,)
    db.value("select pgque.ticker()")

    assert state(db, "is_due", **limits) == (True,)
    batch = db.value("select batch_id from pgque.claim_batch('q', 'c', 'w', i_min_count => 1)")
    assert db.payloads(batch) == ["late"]


def test_an_event_that_comes_again_waits_for_no_other(db: Connection) -> None:
    """It has its old id, in a queue that is quiet since."""
    db.make_queue(ticker_max_lag="0")
    limits = {"i_min_count": 1, "i_min_interval": "1 hour"}
    db.publish("again")
    batch = db.next_batch()
    db.value("select pgque.nack_batch(%s, array[1], '0')", batch)
    db.finish(batch)
    db.tick()
    db.finish(db.next_batch())

    db.value("select pgque.maint_retry_events()")
    db.value("select pgque.ticker()")

    assert state(db, "is_due", **limits) == (True,)


def test_subconsumers_follow_the_consumer_that_they_share(db: Connection) -> None:
    db.make_queue(consumers=("other",))
    for name in ("2", "1"):
        register(db, name)
    db.publish("x")
    batch = db.value("select pgque.next_batch('q', 'c', '2')")
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
            db.rows(f"select {STATES})", queues, consumers)


class TestGivingABatchUp:
    LETTERS = "select ev_data, dl_reason from pgque.dlq_inspect('q') order by 1"

    def give_up(self, db: Connection, *claimed: Any) -> int:
        return db.value("select pgque.give_up_batch(%s, 'too often', %s, %s)", *claimed)

    def test_makes_dead_letters_and_acks_it(self, queue: Connection) -> None:
        assert self.give_up(queue, *claim(queue)) == 2
        assert queue.rows(self.LETTERS) == [("x", "too often"), ("y", "too often")]
        assert queue.next_batch() is None
        assert queue.payloads(queue.open_batch("z")) == ["z"]

    def test_is_the_holders(self, queue: Connection) -> None:
        lost = claim(queue, "first", ttl="1 microsecond")
        claim(queue, "second")
        with refused("PQ012", 'not leased by "first"'):
            self.give_up(queue, *lost)
        assert (queue.rows(self.LETTERS), state(queue, "batch_id")) == ([], (lost[0],))

    def test_is_nobodys_without_a_claim(self, queue: Connection) -> None:
        batch = queue.next_batch()
        with refused("PQ012", "it has no lease"):
            self.give_up(queue, batch, "me", 1)


def hold(db: Connection, batch: Any, epoch: int = 0, reason: str | None = "it failed") -> int:
    return db.value("select pgque.hold_batch(%s, %s, %s)", batch, epoch, reason)


class TestAHeldBatch:
    """All attempts at it failed, and health says so until somebody looks into it."""

    @pytest.fixture
    def batch(self, queue: Connection) -> Any:
        """Open, and with no lease."""
        return queue.next_batch()

    def held(self, db: Connection) -> tuple[str, str | None]:
        return health(db)["held_batch:c"][0], state(db, "held_reason")[0]

    def test_is_critical_with_its_consumer_its_number_and_the_reason(
        self, db: Connection, batch: Any
    ) -> None:
        assert health(db)["held_batch:c"] == ("ok", "no batch is held")
        assert hold(db, batch) == 1
        detail = health(db)["held_batch:c"][1]
        assert detail.startswith(f'batch {batch} of "c" is held since 20')
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
        words = (f"batch {batch} is not held: it is under epoch 1, not 0", "count them again")
        with refused("PQ012", *words):
            hold(db, batch)
        assert hold(db, batch, epoch, "a run by hand failed, too") == 1
        assert self.held(db) == ("critical", "a run by hand failed, too")

    def test_is_not_held_while_its_owner_works_on_it(self, db: Connection, batch: Any) -> None:
        _, _, epoch = claim(db)
        with refused("PQ012", f'batch {batch} is not held: "me" works on it until'):
            hold(db, batch, epoch)

    def test_ends_its_hold_with_its_end(self, db: Connection, batch: Any) -> None:
        hold(db, batch)
        db.finish(batch)
        assert self.held(db)[0] == "ok"
        with refused("PQ003", str(batch)):
            hold(db, batch)
        db.open_batch("b")
        assert self.held(db)[0] == "ok"

    def test_has_a_reason(self, db: Connection, batch: Any) -> None:
        with refused("PQ005", f"no reason is given to hold batch {batch}"):
            hold(db, batch, reason="")

    def test_of_a_subconsumer_is_held_by_itself(self, bare: Connection) -> None:
        register(bare, "one")
        bare.publish("a")
        hold(bare, bare.value("select pgque.next_batch('q', 'c', 'one')"))
        found = health(bare)
        assert found["held_batch:c.one"][0] == "critical"
        assert found["held_batch:c"][0] == "ok"

    def test_goes_with_its_consumer(self, db: Connection, batch: Any) -> None:
        hold(db, batch)
        db.value("select pgque.unregister_consumer('q', 'c')")
        assert db.rows("select * from pgque.held_batch") == []


class TestABatchThatIsTriedAgainWithoutEnd:
    """Its attempts fail by what passes; health says since when and why, and it is not held."""

    RETRIED = "select pgque.hold_batch(%s, 0, %s, true)"

    def failing(self, db: Connection) -> tuple[str, str]:
        found: tuple[str, str] = health(db)["failing_batch:c"]
        return found

    def begin_before(self, db: Connection, age: str) -> None:
        db.execute(f"update pgque.held_batch set held_since = now() - interval '{age}'")

    def test_is_critical_after_two_minutes_until_it_is_finished(self, queue: Connection) -> None:
        batch = queue.next_batch()
        assert queue.value(self.RETRIED, batch, "the target is away") == 1
        assert self.failing(queue)[0] == "warning"
        self.begin_before(queue, "3 minutes")
        claim(queue)
        assert queue.value(self.RETRIED, batch, "the target is away") == 0
        status, detail = self.failing(queue)
        assert status == "critical", "also while an attempt works on it"
        assert detail.startswith(f'batch {batch} of "c" fails since 20')
        assert detail.endswith("what follows it waits: the target is away")
        assert health(queue)["held_batch:c"][0] == "ok"
        assert state(queue, "held_reason") == (None,)
        queue.value("select pgque.ack_batch(%s, 'me', 1)", batch)
        assert self.failing(queue)[0] == "ok"

    def test_keeps_its_beginning_and_has_the_newest_reason(self, queue: Connection) -> None:
        batch = queue.next_batch()
        queue.value(self.RETRIED, batch, "the target is away")
        self.begin_before(queue, "1 day")
        again = "select pgque.hold_batch(%s, 1, 'no right', true)"
        assert queue.value(again, batch) == 1
        assert self.failing(queue)[1].endswith("no right")
        assert self.failing(queue)[0] == "critical"

    def test_is_held_when_its_attempts_are_used_up(self, queue: Connection) -> None:
        batch = queue.next_batch()
        queue.value(self.RETRIED, batch, "the target is away")
        assert hold(queue, batch) == 1
        assert (self.failing(queue)[0], health(queue)["held_batch:c"][0]) == ("ok", "critical")


ENTER = "select pgque.enter_deployment('q', 'c', %s)"
MOVE = "select pgque.move_to_deployment('q', 'c', %s)"
DEPLOYMENTS = "select deployment from pgque.consumer_states(%s::text[], %s::text[])"


def test_a_consumer_that_is_moved_belongs_to_the_other_one(q: Connection) -> None:
    q.value(ENTER, "production")
    since = "select since from pgque.consumer_deployment"
    before = q.value(since)
    q.value(MOVE, "production")
    assert q.value(since) == before
    assert q.value(MOVE, "laptop") == "production"
    assert q.value(ENTER, "laptop") == 0
    with refused("PQ024", 'belongs to deployment "laptop"'):
        q.value(ENTER, "production")


def test_a_consumer_of_nobody_may_be_moved_and_one_may_stay(q: Connection) -> None:
    assert [q.value(MOVE, "production") for _ in range(2)] == [None, None]
    assert q.value(ENTER, "production") == 0


def test_of_two_that_ask_at_once_one_is_refused(q: Connection) -> None:
    _, asked = race(
        q,
        lambda one: one.value(ENTER, "production"),
        lambda two: two.value(ENTER, "laptop"),
    )
    with refused("PQ024"):
        asked.result()


@pytest.mark.parametrize("call", [ENTER, MOVE])
def test_a_deployment_gets_all_slots_while_their_number_changes(
    bare: Connection, call: str
) -> None:
    bare.value("select pgque.subscribe_slots('q', 'c', 2)")
    change = "select pgque.repartition('q', 'c', %s)"
    _, changed = race(
        bare, lambda one: one.value(call, "production"), lambda two: two.value(change, 3)
    )
    changed.result()
    _, asked = race(
        bare, lambda one: one.value(change, 4), lambda two: two.value(call, "production")
    )
    asked.result()
    assert bare.rows(
        "select d.deployment, count(*) from pgque.partition_slot_base b"
        " left join pgque.consumer_deployment d using (sub_id) group by 1"
    ) == [("production", 4)]


@pytest.mark.parametrize("function", ["enter_deployment", "move_to_deployment"])
def test_a_subconsumer_belongs_where_its_consumer_does(q: Connection, function: str) -> None:
    q.value(ENTER, "production")
    q.value("select pgque.register_subconsumer('q', 'c', 'w', true)")
    found = q.rows(DEPLOYMENTS, ["q", "q"], ["c", "nobody"])
    assert found == [("production",), ("production",), (None,)]
    with refused("PQ015"):
        q.value(f"select pgque.{function}('q', 'c.w', 'production')")
    with refused("PQ005", "no deployment"):
        q.value(f"select pgque.{function}('q', 'c', '')")


def test_partitioned_consumers_of_a_queue_have_states_of_their_own(db: Connection) -> None:
    db.make_queue(consumers=("plain",))
    for consumer, deployment, slots in (("c", "production", 2), ("other", "another", 1)):
        db.value("select pgque.subscribe_slots('q', %s, %s)", consumer, slots)
        db.value("select pgque.enter_deployment('q', %s, %s)", consumer, deployment)
    columns = "consumer_name, subconsumer_name, sub_role, deployment"
    assert states(db, "q/plain q/c", columns) == [
        ("plain", None, "normal", None),
        ("c", None, "partitioned", "production"),
        ("c", "0/2", "slot", "production"),
        ("c", "1/2", "slot", "production"),
    ]
