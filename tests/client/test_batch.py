"""A claimed batch: read, judged, acked, in one transaction with its results, its lease kept."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import (
    AckResult,
    Batch,
    BatchNotOpen,
    Client,
    ConsumerNotFound,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    Limits,
    lease,
)
from pgque_dagster.client.batch import read_plan
from tests.client.consumer.support import Queue
from tests.support.queues.sql import Connection, connect
from tests.support.runner.waiting import in_threads, wait_until

HOUR = timedelta(hours=1)
END_ALL_SESSIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


@pytest.fixture
def batch(q: Queue) -> Batch:
    """A batch of the events a, b and c."""
    q.send("a", "b", "c")
    return q.claim()


def judge(batch: Batch) -> list[int]:
    """Lets a come again and gives b up."""
    first, second, third = (event.msg_id for event in batch.events())
    batch.nack([first])
    batch.dead_letter([second], reason="bad")
    return [first, second, third]


def left_behind(q: Queue) -> tuple[list[str], list[str]]:
    """The payloads that wait for a retry, and those that are dead letters."""
    return q.retried(), q.payloads("dead_letter")


def is_open(q: Queue, batch: Batch) -> bool:
    found: int | None = q.db.value("select sub_batch from pgque.subscription")
    return found == batch.batch_id


class TestReading:
    def test_a_batch_gives_its_events_until_it_is_finished(self, q: Queue) -> None:
        assert q.client.claim("q", "c", owner="me") is None
        for _ in range(3):
            q.tick()
        assert q.client.claim("q", "c", owner="me", limits=Limits(min_count=1)) is None
        q.send(*(f"{number}" for number in range(200)))
        batch = q.claim()
        while not batch.events():
            batch.ack()
            batch = q.claim()
        first, again = batch.events(), batch.events()
        assert first == again
        assert [message.payload for message in first] == [str(n) for n in range(200)]
        batch.ack()
        assert q.client.claim("q", "c", owner="me") is None

    def test_a_read_plan_gives_the_events(self, q: Queue, batch: Batch) -> None:
        assert [event.payload for event in batch.events()] == ["a", "b", "c"]
        plan = read_plan(batch, 3)
        read = [row[5] for each in plan.slices for row in q.db.rows(each.sql)]
        assert (sorted(read), plan.events) == (["a", "b", "c"], 3)


class TestAck:
    def test_an_ack_finishes_the_batch_once(self, q: Queue, batch: Batch) -> None:
        batch.ack()
        assert q.client.next_batch("q", "c") is None
        with pytest.raises(BatchNotOpen):
            batch.ack()

    def test_failures_take_effect_with_the_ack(self, q: Queue, batch: Batch) -> None:
        judge(batch)
        assert left_behind(q) == ([], [])
        assert batch.ack() == AckResult(nacked=1, dead_lettered=1)
        assert left_behind(q) == (["a"], ["b"])

    def test_each_failure_has_its_reason(self, q: Queue, batch: Batch) -> None:
        ids = [event.msg_id for event in batch.events()]
        batch.dead_letter(ids[1:], reason=["of b", None])
        batch.ack()
        found = sorted((letter.event_id, letter.reason) for letter in q.client.dead_letters("q"))
        assert found == [(ids[1], "of b"), (ids[2], None)]

    def test_wrong_failures_are_refused_at_once(self, batch: Batch) -> None:
        wrong: list[list[Any]] = [[None], ["1"], [1.5], [2**63]]
        for ids in wrong:
            with pytest.raises(InvalidArgument, match="is an integer"):
                batch.nack(ids)
        with pytest.raises(InvalidArgument, match="2 reasons for 3 events"):
            batch.nack([1, 2, 3], reason=["x", "y"])
        for retry_after in (60, timedelta(seconds=-1), timedelta.max):
            with pytest.raises(InvalidArgument, match="retry_after"):
                batch.nack([], retry_after=retry_after)  # type: ignore[arg-type]
        assert batch.ack() == AckResult(nacked=0, dead_lettered=0)

    def test_a_session_killed_before_the_ack_leaves_nothing(self, q: Queue, batch: Batch) -> None:
        judge(batch)
        q.db.rows(END_ALL_SESSIONS)
        with pytest.raises(Exception, match=r"terminat|closed|connection"):
            batch.ack()
        assert left_behind(q) == ([], [])
        assert is_open(q, batch)

    def test_a_wrong_id_refuses_the_ack_as_a_whole(self, q: Queue, batch: Batch) -> None:
        judge(batch)
        batch.nack([4711])
        with pytest.raises(EventNotInBatch):
            batch.ack()
        assert left_behind(q) == ([], [])

    def test_results_and_ack_are_committed_together(self, q: Queue, batch: Batch) -> None:
        with q.client.transaction() as connection:
            connection.execute("insert into done (id) values ('1')")
            batch.ack()
        assert (q.done(), q.client.next_batch("q", "c")) == (["1"], None)

    @pytest.mark.parametrize("is_zombie", [False, True])
    def test_results_and_ack_are_rolled_back_together(
        self, q: Queue, batch: Batch, is_zombie: bool
    ) -> None:
        judge(batch)
        if is_zombie:
            with connect(q.url) as other:
                other.value("select batch_id from pgque.claim_batch('q', 'c', 'me')")
        with (
            pytest.raises(LeaseLost if is_zombie else ZeroDivisionError),
            q.client.transaction() as connection,
        ):
            connection.execute("insert into done (id) values ('1')")
            batch.ack()
            raise ZeroDivisionError
        assert (q.done(), left_behind(q)) == ([], ([], []))
        assert is_open(q, batch)

    @pytest.mark.parametrize("commits", [False, True])
    def test_a_step_of_the_ack_cannot_commit_by_itself(
        self, q: Queue, batch: Batch, commits: bool
    ) -> None:
        """A block of `transaction()` in it is a savepoint, and `commit()` is refused."""

        def step(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                connection.execute("insert into done (id) values ('1')")
            if commits:
                connection.commit()
            raise ZeroDivisionError

        batch.before_ack(step)
        with pytest.raises((ZeroDivisionError, psycopg.ProgrammingError)) as refused:
            batch.ack()
        assert isinstance(refused.value, psycopg.ProgrammingError) == commits
        assert q.done() == []
        assert is_open(q, batch)

    def test_after_an_error_of_the_callers_own_statement_the_client_goes_on(self, q: Queue) -> None:
        with pytest.raises(psycopg.errors.UndefinedFunction), q.client.transaction() as connection:
            q.client.send("q", "ghost")
            connection.execute("select no_such_function()")
        q.client.send("q", "real")
        assert q.sent() == ["real"]


class TestLease:
    @pytest.fixture
    def renews_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = lease.LeaseKeeper.__init__

        def make(keeper: Any, *arguments: Any) -> None:
            made(keeper, *arguments)
            assert keeper._period * 3 == keeper._ttl.total_seconds()
            keeper._period = 0.02

        monkeypatch.setattr(lease.LeaseKeeper, "__init__", make)
        monkeypatch.setattr(lease, "_JOIN_SECONDS", 0.1)

    def test_it_belongs_to_its_owner_until_it_is_given_up(self, q: Queue, batch: Batch) -> None:
        batch.renew()
        renewed = q.client.lease_info("q", "c")
        assert renewed is not None and renewed.until is not None
        assert (renewed.owner, renewed.is_live) == ("me", True)
        assert renewed.until > batch.lease.until
        again = q.claim()
        for refused in (batch.renew, batch.ack):
            with pytest.raises(LeaseLost):
                refused()
        again.release()
        assert q.claim(owner="next").batch_id == batch.batch_id

    def test_it_is_kept_in_the_block_although_sessions_are_killed(
        self, q: Queue, batch: Batch, renews_often: None
    ) -> None:
        ends = "select lease_until from pgque.get_lease_info('q', 'c')"
        with batch.keep_alive() as keeper:
            for _ in range(3):
                before = q.db.value(ends)
                q.db.rows(f"{END_ALL_SESSIONS} and query like '%renew_batch%'")
                wait_until(lambda before=before: q.db.value(ends) > before)  # type: ignore[misc]
            keeper.check()
        wait_until(lambda: "pgque-lease" not in [each.name for each in threading.enumerate()])

    def test_its_loss_is_reported(self, q: Queue) -> None:
        q.send("a")

        def block(db: Connection) -> None:
            db.execute("lock table pgque.position_log in access exclusive mode")

        def take_over(db: Connection) -> None:
            db.value("select batch_id from pgque.claim_batch('q', 'c', 'me', '1 hour')")

        lose: list[tuple[Callable[[Connection], None], str]] = [
            (block, "in time"),
            (take_over, "epoch"),
        ]
        for way, words in lose:
            batch = q.claim(ttl=timedelta(milliseconds=600))
            with batch.keep_alive() as keeper, connect(q.url) as other, other.transaction():
                with other.transaction():
                    way(other)
                if way is take_over:
                    other.execute("commit")
                with pytest.raises(LeaseLost, match=words):
                    wait_until(keeper.check)  # type: ignore[arg-type]

    def test_leaving_the_block_does_not_wait_for_an_ack_that_is_not_committed(
        self, q: Queue, batch: Batch, renews_often: None
    ) -> None:
        waiting = "select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock'"

        def work() -> None:
            with q.client.transaction(), batch.keep_alive():
                batch.ack()
                wait_until(lambda: q.db.value(waiting))  # a renewal waits for the ack

        with in_threads(work):
            pass
        assert q.client.next_batch("q", "c") is None


class TestDeadLetters:
    @pytest.fixture
    def given_up(self, q: Queue) -> Client:
        """Two dead letters of type default, given up just now because they are torn."""
        q.send("a", "b")
        batch = q.claim()
        batch.dead_letter([event.msg_id for event in batch.events()], reason="torn")
        batch.ack()
        return q.client

    def test_each_filter_fits_or_not(self, given_up: Client) -> None:
        now = datetime.now(UTC)
        for filters in ({"reason": "late"}, {"type": "other"}, {"since": now + HOUR}, {"limit": 0}):
            assert given_up.replay_dead_letters("q", **filters) == (0, 0, None), filters
        fitting = given_up.replay_dead_letters(
            "q", reason="torn", type="default", since=now - HOUR, limit=1
        )
        assert fitting == (1, 0, None)
        assert given_up.replay_dead_letters("q") == (1, 0, None)

    def test_they_are_counted_replayed_and_purged(self, q: Queue, given_up: Client) -> None:
        (count,) = given_up.dead_letter_counts("q")
        assert (count.consumer, count.reason, count.count) == ("c", "torn", 2)
        with pytest.raises(InvalidArgument):
            given_up.purge_dead_letters("q", timedelta(days=-1))
        newest = given_up.dead_letters("q", limit=1)[0]
        given_up.replay_dead_letter(newest.id)
        assert given_up.purge_dead_letters("q", timedelta(0)) == 1
        q.tick()
        assert q.drain() == [newest.payload]

    def test_kept_without_their_consumer_they_are_not_replayed(self, given_up: Client) -> None:
        given_up.unregister_consumer("q", "c", keep_dead_letters=True)
        letter = given_up.dead_letters("q")[0]
        with pytest.raises(ConsumerNotFound, match='"c"'):
            given_up.replay_dead_letter(letter.id)
        replayed, failed, error = given_up.replay_dead_letters("q")
        assert (replayed, failed) == (0, 2)
        assert error is not None and '"c"' in error
        assert len(given_up.dead_letters("q")) == 2
