"""Leases: one owner at a time, fenced by the epoch, whatever two sessions do at once."""

from typing import Any, NamedTuple

import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused

INFO = "select batch_id, owner, epoch, is_live from pgque.get_lease_info('q', 'c')"


class Claim(NamedTuple):
    batch: int
    owner: str
    epoch: int


def claim(db: Connection, owner: str = "me", ttl: str = "1 minute", **more: Any) -> Claim | None:
    named = "".join(f", {name} => %s" for name in more)
    sql = f"select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s{named})"
    ((batch, epoch),) = db.rows(sql, owner, ttl, *more.values())
    return None if batch is None else Claim(batch, owner, epoch)


def ack(db: Connection, claimed: Claim) -> int:
    return db.value("select pgque.ack_batch(%s, %s, %s)", *claimed)


def renew(db: Connection, claimed: Claim, ttl: str = "1 minute") -> Any:
    return db.value("select pgque.renew_batch(%s, %s, %s, %s)", *claimed, ttl)


def release(db: Connection, claimed: Claim) -> int:
    return db.value("select pgque.release_batch(%s, %s, %s)", *claimed)


def taken(db: Connection, owner: str = "me", ttl: str = "1 minute") -> Claim:
    claimed = claim(db, owner, ttl)
    assert claimed is not None
    return claimed


def expired(db: Connection, owner: str = "zombie") -> Claim:
    """A claim whose lease ran out."""
    claimed = taken(db, owner, "1 millisecond")
    db.value("select pg_sleep(0.01)::text")
    return claimed


@pytest.fixture
def queue(db: Connection) -> Connection:
    """A queue with one batch of events to claim."""
    db.make_queue()
    db.publish("a", "b")
    return db


class TestClaiming:
    def test_opens_the_next_batch_within_limits(self, queue: Connection) -> None:
        assert claim(queue, i_min_count=3) is None
        claimed = taken(queue)
        assert queue.payloads(claimed.batch) == ["a", "b"]
        ack(queue, claimed)
        assert queue.next_batch() is None
        with refused("PQ003", str(claimed.batch)):
            ack(queue, claimed)
        assert claim(queue) is None
        queue.tick()
        with refused("PQ003"):
            claim(queue, i_batch_id=claimed.batch)
        assert queue.rows(INFO) == []
        assert taken(queue).epoch > claimed.epoch

    def test_takes_the_open_batch_that_nobody_holds(self, queue: Connection) -> None:
        batch = queue.next_batch()
        assert queue.rows(INFO) == [(batch, None, 0, False)]
        with refused("PQ003", str(batch + 1)):
            claim(queue, i_batch_id=batch + 1)
        claimed = claim(queue, i_batch_id=batch)
        assert claimed is not None and claimed.batch == batch
        release(queue, claimed)
        assert taken(queue).batch == batch

    def test_is_told_by_lease_info(self, queue: Connection) -> None:
        claimed = taken(queue, "holder")
        assert queue.rows(INFO) == [(*claimed, True)]
        until = renew(queue, claimed, "1 hour")
        assert queue.value("select lease_until from pgque.get_lease_info('q', 'c')") == until
        renew(queue, claimed, "1 microsecond")
        assert queue.rows(INFO) == [(*claimed, False)]

    def test_and_renewing_need_an_owner_and_a_time(self, queue: Connection) -> None:
        claimed = taken(queue)
        for owner, ttl in (("", "1 min"), ("me", "0")):
            with refused("PQ005", "lease"):
                claim(queue, owner, ttl)
            with refused("PQ005", "lease"):
                renew(queue, claimed._replace(owner=owner), ttl)


class TestFencing:
    def test_others_can_do_nothing_while_a_lease_lives(self, queue: Connection) -> None:
        claimed = taken(queue, "holder")
        for call in (
            "claim_batch('q', 'c', 'rival')",
            "next_batch('q', 'c')",
            "next_batch_custom('q', 'c', null, null, null)",
            "receive('q', 'c')",
        ):
            with refused("PQ004", '"holder"'):
                queue.rows(f"select pgque.{call}")
        for call in ("finish_batch", "ack"):
            with refused("PQ004", '"holder"', "ack_batch"):
                queue.value(f"select pgque.{call}(%s)", claimed.batch)
        message = f"(1, {claimed.batch},,,,,,,,)"
        with refused("PQ004", '"holder"'):
            queue.value("select pgque.nack(%s, %s::pgque.message)", claimed.batch, message)
        for call in ("event_retry(%s, 1, 0)", "event_retry(%s, 1, now())", "batch_retry(%s, 0)"):
            with refused("PQ004", '"holder"'):
                queue.value(f"select pgque.{call}", claimed.batch)

    @pytest.mark.parametrize("heir", ["heir", "zombie"])
    def test_a_zombie_can_do_nothing(self, queue: Connection, heir: str) -> None:
        zombie = expired(queue) if heir == "heir" else taken(queue, "zombie")
        claimed = taken(queue, heir)
        assert (claimed.batch, claimed.epoch) == (zombie.batch, zombie.epoch + 1)
        for attempt in (ack, renew, release):
            with refused("PQ012", str(zombie.batch), f'"{heir}"'):
                attempt(queue, zombie)
            with refused("PQ012", "somebody else"):
                attempt(queue, claimed._replace(owner="somebody else"))
        assert ack(queue, claimed) == 1

    def test_a_lease_that_ran_out_counts_while_nobody_took_over(self, queue: Connection) -> None:
        claimed = expired(queue)
        renew(queue, claimed, "1 hour")
        with refused("PQ004"):
            claim(queue, "rival")
        renew(queue, claimed, "1 microsecond")
        assert ack(queue, claimed) == 1

    def test_a_plain_consumer_goes_on_when_the_lease_ran_out(self, queue: Connection) -> None:
        zombie = expired(queue)
        queue.finish(queue.next_batch())
        with refused("PQ003"):
            ack(queue, zombie)

    def test_a_released_batch_is_anybodys_at_once(self, queue: Connection) -> None:
        claimed = taken(queue)
        release(queue, claimed)
        with refused("PQ012", "no lease"):
            ack(queue, claimed)
        following = taken(queue, "next")
        assert following.batch == claimed.batch
        release(queue, following)
        queue.finish(claimed.batch)
        assert queue.next_batch() is None


@pytest.mark.parametrize(
    "call",
    ["select pgque.nack_batch(%s, '{1}'", "select pgque.dead_letter_batch(%s, '{1}', 'bad'"],
)
class TestSettlingEventsOfALeasedBatch:
    AS_HOLDER = ", i_owner => %s, i_epoch => %s)"

    def left_behind(self, db: Connection) -> int:
        """How many events were scheduled again or given up."""
        retries, letters = "select from pgque.retry_queue", "select from pgque.dead_letter"
        return len(db.rows(f"{retries} union all {letters}"))

    def test_is_the_holders_while_the_lease_lives(self, queue: Connection, call: str) -> None:
        claimed = taken(queue, "holder")
        with refused("PQ004", '"holder"', "i_owner"):
            queue.value(call + ")", claimed.batch)
        with refused("PQ012"):
            queue.value(call + ", i_epoch => %s)", claimed.batch, claimed.epoch)
        assert self.left_behind(queue) == 0
        assert queue.value(call + self.AS_HOLDER, *claimed) == 1

    def test_is_the_holders_while_nobody_took_over(self, queue: Connection, call: str) -> None:
        zombie = expired(queue)
        assert queue.value(call + self.AS_HOLDER, *zombie) == 1
        heir = taken(queue, "heir")
        for former in (zombie, zombie._replace(owner=heir.owner)):
            with refused("PQ012", '"heir"'):
                queue.value(call + self.AS_HOLDER, *former)
        assert self.left_behind(queue) == 1

    def test_is_anybodys_when_the_lease_ran_out(self, queue: Connection, call: str) -> None:
        assert queue.value(call + ")", expired(queue).batch) == 1


@pytest.mark.parametrize(
    ("call", "ttl", "arguments"),
    [
        ("ack_batch(%s, %s, %s)", "1 hour", 3),
        ("finish_batch(%s)", "1 microsecond", 1),
        ("get_batch_events(%s)", "1 hour", 1),
    ],
)
def test_what_ends_or_reads_a_batch_with_thousands_of_renewals_reads_a_few(
    queue: Connection, call: str, ttl: str, arguments: int
) -> None:
    """Each renewal is a row of the log."""
    rows_read = """
        select pg_stat_get_xact_tuples_fetched('pgque.position_log_0'::regclass)
             + pg_stat_get_xact_tuples_returned('pgque.position_log_0'::regclass)
             + (select sum(pg_stat_get_xact_tuples_returned(indexrelid)) from pg_index
                where indrelid = 'pgque.position_log_0'::regclass)
    """
    claimed = taken(queue)
    many = "select pgque.renew_batch(%s, %s, %s, %s) from generate_series(1, 3000)"
    queue.execute(many.encode(), [*claimed, ttl])
    with queue.transaction():
        before = queue.value(rows_read)
        queue.rows(f"select * from pgque.{call}", *claimed[:arguments])
        assert queue.value(rows_read) - before < 50


class TestAtOnce:
    @pytest.mark.parametrize(
        ("is_dead", "first", "second", "expected"),
        [
            # A claim, and whoever waited for it.
            (False, lambda db, _: claim(db, "heir"), lambda db, _: claim(db, "rival"), "PQ004"),
            # A take-over and a late ack: whichever comes first.
            (True, ack, lambda db, _: claim(db, "heir"), None),
            (True, lambda db, _: claim(db, "heir"), ack, "PQ012"),
            # A holder's own renewal and ack.
            (False, renew, ack, 1),
            (False, ack, renew, "PQ003"),
        ],
    )
    def test_the_second_sees_what_the_first_did(
        self, queue: Connection, is_dead: bool, first: Any, second: Any,
        expected: object,
    ) -> None:  # fmt: skip
        held = expired(queue) if is_dead else taken(queue)
        if second not in (ack, renew) and not is_dead:
            release(queue, held)
        _, answer = race(queue, lambda db: first(db, held), lambda db: second(db, held))
        if isinstance(expected, str):
            with refused(expected, '"heir"' if expected != "PQ003" else ""):
                answer.result()
        else:
            assert answer.result() == expected

    def test_an_old_snapshot_cannot_move_a_consumer_that_moved_on(self, queue: Connection) -> None:
        old = queue.another().hold_snapshot()
        queue.finish(queue.next_batch())
        with refused("40001"):
            old.next_batch()
