"""Leases: one owner at a time, fenced by the epoch."""

from typing import Any, NamedTuple

import pytest

from tests.support.queues import (
    Connection,
    finish,
    make_queue,
    next_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)


class Claim(NamedTuple):
    batch: int
    owner: str
    epoch: int


def claim(db: Connection, owner: str = "me", ttl: str = "1 minute", **more: Any) -> Claim | None:
    named = "".join(f", {name} => %s" for name in more)
    ((batch, epoch),) = rows(
        db,
        f"select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s{named})",
        owner,
        ttl,
        *more.values(),
    )
    return None if batch is None else Claim(batch, owner, epoch)


def ack(db: Connection, claimed: Claim) -> int:
    done: int = value(db, "select pgque.ack_batch(%s, %s, %s)", *claimed)
    return done


def renew(db: Connection, claimed: Claim, ttl: str = "1 minute") -> Any:
    return value(db, "select pgque.renew_batch(%s, %s, %s, %s)", *claimed, ttl)


def release(db: Connection, claimed: Claim) -> int:
    done: int = value(db, "select pgque.release_batch(%s, %s, %s)", *claimed)
    return done


def taken(db: Connection, owner: str = "me", ttl: str = "1 minute") -> Claim:
    claimed = claim(db, owner, ttl)
    assert claimed is not None
    return claimed


def expired(db: Connection, owner: str = "zombie") -> Claim:
    """A claim whose lease ran out."""
    claimed = taken(db, owner, "1 millisecond")
    value(db, "select pg_sleep(0.01)::text")
    return claimed


@pytest.fixture
def queue(db: Connection) -> Connection:
    """A queue with one batch of events to claim."""
    make_queue(db)
    send(db, "a", "b")
    tick(db)
    return db


def test_a_claim_opens_the_next_batch(queue: Connection) -> None:
    assert payloads(queue, taken(queue).batch) == ["a", "b"]


def test_without_a_batch_there_is_no_claim(db: Connection) -> None:
    make_queue(db)
    assert claim(db) is None


def test_a_claim_takes_the_open_batch_that_nobody_holds(queue: Connection) -> None:
    batch = next_batch(queue)
    assert taken(queue).batch == batch


def test_a_claim_respects_the_limits(queue: Connection) -> None:
    assert claim(queue, i_min_count=3) is None


def test_an_ack_finishes_the_batch(queue: Connection) -> None:
    ack(queue, taken(queue))
    assert next_batch(queue) is None


def test_second_ack_of_a_batch_is_refused(queue: Connection) -> None:
    claimed = taken(queue)
    ack(queue, claimed)
    with refused("PQ003", str(claimed.batch)):
        ack(queue, claimed)


def test_an_ack_after_the_lease_ran_out_counts_while_nobody_took_over(queue: Connection) -> None:
    assert ack(queue, expired(queue)) == 1


def test_a_claim_on_a_live_lease_of_another_is_refused(queue: Connection) -> None:
    taken(queue, "holder")
    with refused("PQ004", '"holder"'):
        claim(queue, "rival")


def test_a_take_over_raises_the_epoch(queue: Connection) -> None:
    zombie = expired(queue)
    heir = taken(queue, "heir")
    assert (heir.batch, heir.epoch) == (zombie.batch, zombie.epoch + 1)


@pytest.mark.parametrize("attempt", [ack, renew, release])
@pytest.mark.parametrize("heir", ["heir", "zombie"])
def test_a_zombie_can_do_nothing(queue: Connection, attempt: Any, heir: str) -> None:
    zombie = expired(queue)
    taken(queue, heir)
    with refused("PQ012", str(zombie.batch), f'"{heir}"'):
        attempt(queue, zombie)


def test_a_zombies_attempt_leaves_the_heirs_lease(queue: Connection) -> None:
    zombie = expired(queue)
    heir = taken(queue, "heir")
    with refused("PQ012"):
        release(queue, zombie)
    assert ack(queue, heir) == 1


def test_the_same_owner_claiming_again_fences_its_earlier_claim(queue: Connection) -> None:
    first = taken(queue)
    second = taken(queue)
    with refused("PQ012"):
        ack(queue, first)
    assert ack(queue, second) == 1


@pytest.mark.parametrize("attempt", [ack, renew, release])
def test_a_wrong_owner_with_the_right_epoch_is_refused(queue: Connection, attempt: Any) -> None:
    claimed = taken(queue)
    with refused("PQ012", "somebody else"):
        attempt(queue, claimed._replace(owner="somebody else"))


def test_the_epoch_never_falls_from_batch_to_batch(queue: Connection) -> None:
    first = taken(queue)
    ack(queue, first)
    tick(queue)
    assert taken(queue).epoch > first.epoch


def test_a_renewal_prolongs_the_lease(queue: Connection) -> None:
    claimed = expired(queue)
    renew(queue, claimed, "1 hour")
    with refused("PQ004"):
        claim(queue, "rival")


def test_a_renewal_answers_with_the_end_that_others_see(queue: Connection) -> None:
    until = renew(queue, taken(queue), "1 hour")
    assert value(queue, "select lease_until from pgque.get_lease_info('q', 'c')") == until


def test_a_released_batch_can_be_claimed_at_once(queue: Connection) -> None:
    claimed = taken(queue)
    release(queue, claimed)
    assert taken(queue, "next").batch == claimed.batch


def test_a_released_claim_can_no_longer_ack(queue: Connection) -> None:
    claimed = taken(queue)
    release(queue, claimed)
    with refused("PQ012", "nobody"):
        ack(queue, claimed)


def test_a_released_batch_is_finished_without_a_lease(queue: Connection) -> None:
    claimed = taken(queue)
    release(queue, claimed)
    finish(queue, claimed.batch)
    assert next_batch(queue) is None


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c')",
        "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null)",
        "select msg_id from pgque.receive('q', 'c')",
    ],
)
def test_a_plain_consumer_respects_a_live_lease(queue: Connection, call: str) -> None:
    taken(queue, "holder")
    with refused("PQ004", '"holder"'):
        value(queue, call)


@pytest.mark.parametrize("call", ["pgque.finish_batch", "pgque.ack"])
def test_a_plain_consumer_cannot_finish_a_leased_batch(queue: Connection, call: str) -> None:
    claimed = taken(queue, "holder")
    with refused("PQ004", '"holder"', "ack_batch"):
        value(queue, f"select {call}(%s)", claimed.batch)


def test_a_plain_consumer_goes_on_when_the_lease_ran_out(queue: Connection) -> None:
    zombie = expired(queue)
    batch = next_batch(queue)
    finish(queue, batch)
    with refused("PQ003"):
        ack(queue, zombie)


def test_a_batch_named_in_the_claim_is_claimed(queue: Connection) -> None:
    batch = next_batch(queue)
    claimed = claim(queue, i_batch_id=batch)
    assert claimed is not None and claimed.batch == batch


def test_a_batch_named_in_the_claim_that_is_not_open_is_refused(queue: Connection) -> None:
    batch = next_batch(queue)
    with refused("PQ003", str(batch + 1)):
        claim(queue, i_batch_id=batch + 1)


def test_a_finished_batch_named_in_the_claim_opens_no_other(queue: Connection) -> None:
    claimed = taken(queue)
    ack(queue, claimed)
    tick(queue)
    with refused("PQ003"):
        claim(queue, i_batch_id=claimed.batch)
    assert rows(queue, "select * from pgque.get_lease_info('q', 'c')") == []


@pytest.mark.parametrize(
    ("owner", "ttl"), [("", "1 min"), (None, "1 min"), ("me", "0"), ("me", "-1 s"), ("me", None)]
)
class TestALeaseWithoutOwnerOrTime:
    def test_is_not_given(self, queue: Connection, owner: str | None, ttl: str | None) -> None:
        with refused("PQ005", "lease"):
            rows(queue, "select * from pgque.claim_batch('q', 'c', %s, %s)", owner, ttl)

    def test_is_not_renewed(self, queue: Connection, owner: str | None, ttl: str | None) -> None:
        claimed = taken(queue)
        with refused("PQ005", "lease"):
            renew(queue, claimed._replace(owner=owner), ttl)  # type: ignore[arg-type]


def test_lease_info_tells_who_holds_the_batch(queue: Connection) -> None:
    claimed = taken(queue, "holder")
    info = rows(queue, "select batch_id, owner, epoch, is_live from pgque.get_lease_info('q', 'c')")
    assert info == [(claimed.batch, "holder", claimed.epoch, True)]


def test_lease_info_tells_that_a_lease_ran_out(queue: Connection) -> None:
    expired(queue)
    assert value(queue, "select is_live from pgque.get_lease_info('q', 'c')") is False


def test_lease_info_tells_that_nobody_holds_the_batch(queue: Connection) -> None:
    batch = next_batch(queue)
    info = rows(queue, "select batch_id, owner, is_live from pgque.get_lease_info('q', 'c')")
    assert info == [(batch, None, False)]


SETTLE = [
    "select pgque.nack_batch(%s, '{1}'",
    "select pgque.dead_letter_batch(%s, '{1}', 'bad'",
]


def left_behind(db: Connection) -> int:
    """How many events were scheduled again or given up."""
    count: int = value(
        db,
        "select (select count(*) from pgque.retry_queue)"
        " + (select count(*) from pgque.dead_letter)",
    )
    return count


@pytest.mark.parametrize("call", SETTLE)
class TestSettlingEventsOfALeasedBatch:
    AS_HOLDER = ", i_owner => %s, i_epoch => %s)"

    def test_is_the_holders(self, queue: Connection, call: str) -> None:
        claimed = taken(queue)
        assert value(queue, call + self.AS_HOLDER, *claimed) == 1

    def test_is_the_holders_while_nobody_took_over(self, queue: Connection, call: str) -> None:
        assert value(queue, call + self.AS_HOLDER, *expired(queue)) == 1

    def test_is_refused_to_others(self, queue: Connection, call: str) -> None:
        claimed = taken(queue, "holder")
        with refused("PQ004", '"holder"', "i_owner"):
            value(queue, call + ")", claimed.batch)
        assert left_behind(queue) == 0

    def test_is_refused_to_a_zombie(self, queue: Connection, call: str) -> None:
        zombie = expired(queue)
        heir = taken(queue, "heir")
        with refused("PQ012", '"heir"'):
            value(queue, call + self.AS_HOLDER, *zombie)
        with refused("PQ012", '"heir"'):
            value(queue, call + self.AS_HOLDER, *zombie._replace(owner=heir.owner))
        assert left_behind(queue) == 0

    def test_is_anybodys_when_the_lease_ran_out(self, queue: Connection, call: str) -> None:
        assert value(queue, call + ")", expired(queue).batch) == 1

    def test_is_refused_under_an_epoch_without_an_owner(self, queue: Connection, call: str) -> None:
        claimed = taken(queue)
        with refused("PQ012"):
            value(queue, call + ", i_epoch => %s)", claimed.batch, claimed.epoch)


def test_one_nack_of_a_message_is_refused_to_others(queue: Connection) -> None:
    claimed = taken(queue, "holder")
    message = f"(1, {claimed.batch},,,,,,,,)"
    with refused("PQ004", '"holder"'):
        value(queue, "select pgque.nack(%s, %s::pgque.message)", claimed.batch, message)


class TestABatchWithThousandsOfRenewals:
    """Each renewal is a row of the log; what ends the batch reads a few of them."""

    READ = """
        select pg_stat_get_xact_tuples_fetched('pgque.position_log_0'::regclass)
             + pg_stat_get_xact_tuples_returned('pgque.position_log_0'::regclass)
             + (select sum(pg_stat_get_xact_tuples_returned(indexrelid)) from pg_index
                where indrelid = 'pgque.position_log_0'::regclass)
    """

    def renewed(self, db: Connection, ttl: str) -> Claim:
        claimed = taken(db)
        db.execute(
            "select pgque.renew_batch(%s, %s, %s, %s) from generate_series(1, 3000)",
            [*claimed, ttl],
        )
        return claimed

    def rows_read(self, db: Connection, call: str, *params: object) -> int:
        with db.transaction():
            before = value(db, self.READ)
            rows(db, call, *params)
            read: int = value(db, self.READ) - before
            return read

    def test_is_acked_by_reading_a_few(self, queue: Connection) -> None:
        claimed = self.renewed(queue, "1 hour")
        assert self.rows_read(queue, "select pgque.ack_batch(%s, %s, %s)", *claimed) < 50

    def test_is_finished_by_reading_a_few(self, queue: Connection) -> None:
        claimed = self.renewed(queue, "1 microsecond")
        assert self.rows_read(queue, "select pgque.finish_batch(%s)", claimed.batch) < 50

    def test_is_read_by_reading_a_few(self, queue: Connection) -> None:
        claimed = self.renewed(queue, "1 hour")
        assert self.rows_read(queue, "select * from pgque.get_batch_events(%s)", claimed.batch) < 50
