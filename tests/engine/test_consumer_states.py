"""Many consumers' states in one answer, and giving a whole batch up."""

from typing import Any

import pytest

from tests.support.queues import (
    Connection,
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


def states(
    db: Connection, *consumers: tuple[str, str], columns: str = "*", **limits: Any
) -> list[tuple[Any, ...]]:
    named = "".join(f", {name} => %s" for name in limits)
    return rows(
        db,
        f"select {columns} from pgque.consumer_states(%s::text[], %s::text[]{named})",
        [queue for queue, _ in consumers],
        [consumer for _, consumer in consumers],
        *limits.values(),
    )


def state(db: Connection, columns: str, **limits: Any) -> tuple[Any, ...]:
    (only,) = states(db, ("q", "c"), columns=columns, **limits)
    return only


def claim(db: Connection, owner: str = "me", ttl: str = "1 minute") -> tuple[Any, ...]:
    ((batch, epoch),) = rows(
        db, "select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s)", owner, ttl
    )
    return batch, owner, epoch


def give_up(db: Connection, batch: Any, owner: str, epoch: Any) -> int:
    number: int = value(
        db, "select pgque.give_up_batch(%s, 'too often', %s, %s)", batch, owner, epoch
    )
    return number


def test_each_pair_gets_a_row_in_the_order_given(db: Connection) -> None:
    make_queue(db, consumers=("a", "b"))

    found = states(
        db,
        ("q", "b"),
        ("nosuch", "b"),
        ("q", "nobody"),
        ("q", "a"),
        columns="queue_name, consumer_name, queue_exists, sub_role",
    )

    assert found == [
        ("q", "b", True, "normal"),
        ("nosuch", "b", False, None),
        ("q", "nobody", True, None),
        ("q", "a", True, "normal"),
    ]


def test_an_open_batch_is_told_with_its_lease(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    batch, _, _ = claim(db)

    assert state(db, "batch_id, lease_owner, lease_until > now(), is_live, is_due") == (
        batch,
        "me",
        True,
        True,
        False,
    )


def test_a_lease_that_ran_out_is_not_live(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    claim(db, ttl="1 microsecond")

    assert state(db, "lease_owner, is_live") == ("me", False)


def test_a_consumer_is_due_once_a_tick_meets_the_limits(db: Connection) -> None:
    make_queue(db)
    before = state(db, "is_due")
    send(db, "x", "y")
    tick(db)

    assert before == (False,)
    assert state(db, "is_due", i_min_count=2) == (True,)
    assert state(db, "is_due", i_min_count=3) == (False,)


def test_looking_opens_nothing(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    positions = value(db, "select count(*) from pgque.position_log")

    assert state(db, "batch_id, is_due") == (None, True)
    assert value(db, "select count(*) from pgque.position_log") == positions


def test_subconsumers_follow_the_consumer_that_they_share(db: Connection) -> None:
    make_queue(db, consumers=("other",))
    for name in ("2", "1"):
        value(db, "select pgque.register_subconsumer('q', 'c', %s)", name)
    send(db, "x")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', '2')")

    found = states(
        db,
        ("q", "c"),
        ("q", "other"),
        columns="consumer_name, subconsumer_name, sub_role, batch_id, is_due",
    )

    assert found == [
        ("c", None, "coop_main", None, False),
        ("c", "1", "coop_member", None, False),
        ("c", "2", "coop_member", batch, False),
        ("other", None, "normal", None, True),
    ]


def test_limits_that_no_batch_meets_are_refused(db: Connection) -> None:
    make_queue(db)

    with refused("PQ005", "max_count 0"):
        states(db, ("q", "c"), i_max_count=0)


@pytest.mark.parametrize("texts", [(), ("x",)])
def test_a_batch_with_an_event_is_told_from_an_empty_one(
    db: Connection, texts: tuple[str, ...]
) -> None:
    make_queue(db)

    batch = open_batch(db, *texts)

    assert value(db, "select pgque.batch_has_events(%s)", batch) is bool(texts)


def test_a_batch_that_is_given_up_is_dead_letters_and_acked(db: Connection) -> None:
    make_queue(db)
    send(db, "x", "y")
    tick(db)

    assert give_up(db, *claim(db)) == 2

    assert rows(db, "select ev_data, dl_reason from pgque.dlq_inspect('q') order by 1") == [
        ("x", "too often"),
        ("y", "too often"),
    ]
    assert next_batch(db) is None


def test_events_after_a_batch_that_was_given_up_are_delivered(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    give_up(db, *claim(db))

    assert payloads(db, open_batch(db, "y")) == ["y"]


def test_only_the_holder_gives_a_batch_up(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    batch, owner, epoch = claim(db, "first", ttl="1 microsecond")
    claim(db, "second")

    with refused("PQ012", 'not leased by "first"'):
        give_up(db, batch, owner, epoch)

    assert rows(db, "select 1 from pgque.dlq_inspect('q')") == []
    assert state(db, "batch_id") == (batch,)


def test_a_batch_that_nobody_claimed_is_not_given_up(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "x")

    with refused("PQ012", "nobody holds it"):
        give_up(db, batch, "me", 1)


def test_an_empty_batch_is_given_up_without_a_dead_letter(db: Connection) -> None:
    make_queue(db)
    tick(db)

    assert give_up(db, *claim(db)) == 0
    assert rows(db, "select 1 from pgque.dlq_inspect('q')") == []


def test_queues_without_as_many_consumers_are_refused(db: Connection) -> None:
    for queues, consumers in ((["q"], []), (None, ["c"]), (["q"], None), (None, None)):
        with refused("PQ005", "consumers"):
            rows(
                db,
                "select pgque.consumer_states(%s::text[], %s::text[])",
                queues,
                consumers,
            )
