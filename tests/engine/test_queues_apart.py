"""A queue shows, retries and gives up its own events only, whatever other queues hold."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    drain,
    finish,
    make_queue,
    next_batch,
    payloads,
    queue_id,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.slots import subscribe

Another = Callable[[], Connection]


@pytest.fixture(params=[0, 1_000], ids=["few ids", "many ids"])
def foreign(request: pytest.FixtureRequest, db: Connection) -> list[int]:
    """Events of the queue busy, between two ticks of the quiet queue q; returns their ids.

    A rolled-back send_batch uses up ids of q, so that its batch counts as a large one.
    """
    make_queue(db, "busy")
    make_queue(db, "q", consumers=("c",))
    value(db, "select pgque.register_subconsumer('q', 'shared', 'w')")
    subscribe(db, 0, 1, "parted")
    if request.param:
        with db.transaction(force_rollback=True):
            value(db, "select pgque.send_batch('q', 't', %s::text[])", ["x"] * request.param)
    ids = send(db, "a", "b", "c", queue="busy")
    value(db, "select pgque.force_next_tick(queue_name) from pgque.queue where queue_name = 'q'")
    value(db, "select pgque.force_next_tick(queue_name) from pgque.queue where queue_name = 'busy'")
    value(db, "select pgque.ticker()")
    return ids


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c')",
        "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w')",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_max_count => 10)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_min_count => 1)",
    ],
)
def test_a_batch_ends_at_a_tick_of_its_own_queue(db: Connection, call: str) -> None:
    make_queue(db, "q")
    make_queue(db, "busy")
    for text in ("a", "b", "c"):
        send(db, text, queue="busy")
        tick(db, "busy")

    assert value(db, call) is None

    send(db, "mine")
    tick(db)
    batch = value(db, call)
    assert batch is not None
    assert payloads(db, batch) == ["mine"]


def retries(db: Connection) -> int:
    count: int = value(db, "select count(*) from pgque.retry_queue")
    return count


class TestAnIdleQueue:
    def test_receive_returns_nothing(self, db: Connection, foreign: list[int]) -> None:
        assert rows(db, "select * from pgque.receive('q', 'c', 10)") == []

    def test_receive_coop_returns_nothing(self, db: Connection, foreign: list[int]) -> None:
        assert rows(db, "select * from pgque.receive_coop('q', 'shared', 'w', 10)") == []

    def test_receive_partitioned_returns_nothing(self, db: Connection, foreign: list[int]) -> None:
        sql = "select * from pgque.receive_partitioned('q', 'parted', 0, 1, 'w')"
        value(db, "select pgque.claim_slot('q', 'parted', 0, 'w', '1 minute')")
        assert rows(db, sql) == []

    def test_its_batch_has_no_events(self, db: Connection, foreign: list[int]) -> None:
        assert not value(db, "select pgque.batch_has_events(%s)", next_batch(db))

    def test_get_batch_events_returns_nothing(self, db: Connection, foreign: list[int]) -> None:
        assert rows(db, "select * from pgque.get_batch_events(%s)", next_batch(db)) == []

    def test_a_cursor_returns_nothing(self, db: Connection, foreign: list[int]) -> None:
        batch = next_batch(db)
        with db.transaction():
            assert rows(db, "select * from pgque.get_batch_cursor(%s, 'x', 10)", batch) == []
            assert rows(db, "fetch all from x") == []

    def test_the_sql_of_its_batch_names_no_table_but_its_own(
        self, db: Connection, foreign: list[int]
    ) -> None:
        sql = value(db, "select pgque.batch_event_sql(%s)", next_batch(db))
        assert rows(db, sql) == []
        plan = rows(db, f"explain (verbose, costs off) {sql}")
        named = rows(
            db,
            "select distinct (regexp_matches(line, 'pgque\\.([a-z]\\w*)', 'g'))[1]"
            " from unnest(%s::text[]) line where line ~ ' on pgque'",
            [line for (line,) in plan],
        )
        assert {name[:7] for (name,) in named} <= {f"event_{queue_id(db)}"}

    def test_its_retained_ticks_enclose_nothing(self, db: Connection, foreign: list[int]) -> None:
        sql = "select * from pgque.tick_range_read_plan('q', 1, 2, 4)"
        assert rows(db, sql) == []


@pytest.mark.parametrize(
    "settle",
    [
        "select pgque.nack_batch(%(batch)s, %(ids)s, '0')",
        "select pgque.nack_batch(%(batch)s, %(ids)s, '0', array['bad'])",
        "select pgque.dead_letter_batch(%(batch)s, %(ids)s, 'bad')",
        "select pgque.dead_letter_batch(%(batch)s, %(ids)s, array['bad'])",
        "select pgque.event_retry(%(batch)s, %(id)s, 0)",
        "select pgque.event_retry(%(batch)s, %(id)s, now())",
        "select pgque.nack(%(batch)s, row(%(id)s, %(batch)s, 't', 'a', null, now(),"
        " null, null, null, null)::pgque.message)",
    ],
)
def test_events_of_another_queue_are_not_in_the_batch(
    db: Connection, foreign: list[int], settle: str
) -> None:
    batch = next_batch(db)
    with refused("PQ009", f"event {foreign[0]} is not in batch {batch}"):
        db.execute(settle.encode(), {"batch": batch, "ids": foreign, "id": foreign[0]})
    assert (retries(db), value(db, "select count(*) from pgque.dead_letter")) == (0, 0)


def test_a_slot_takes_no_event_of_another_queue_back(db: Connection, foreign: list[int]) -> None:
    value(db, "select pgque.insert_event('q', 't', 'mine', 'key', null, null, null)")
    tick(db)
    value(db, "select pgque.claim_slot('q', 'parted', 0, 'w', '1 minute')")
    ((_, batch, *message),) = rows(
        db, "select * from pgque.receive_partitioned('q', 'parted', 0, 1, 'w')"
    )
    values: list[Any] = [foreign[-1], batch, *message]
    sql = "select pgque.nack_partitioned('q', 'parted', 0, 1, 'w', row({})::pgque.message)"
    with refused("PQ009", str(foreign[-1])):
        value(db, sql.format(", ".join(["%s"] * len(values))), *values)
    assert retries(db) == 0


def test_a_batch_that_is_retried_whole_takes_no_foreign_events(
    db: Connection, foreign: list[int]
) -> None:
    assert value(db, "select pgque.batch_retry(%s, 0)", next_batch(db)) == 0
    assert retries(db) == 0


def test_a_batch_that_is_given_up_takes_no_foreign_events(
    db: Connection, foreign: list[int]
) -> None:
    ((batch, epoch),) = rows(
        db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
    )
    assert value(db, "select pgque.give_up_batch(%s, 'bad', 'me', %s)", batch, epoch) == 0
    assert rows(db, "select * from pgque.dlq_inspect('q')") == []


def test_a_worker_that_leaves_returns_no_foreign_events(db: Connection, foreign: list[int]) -> None:
    value(db, "select pgque.next_batch('q', 'shared', 'w')")
    value(db, "select pgque.unregister_subconsumer('q', 'shared', 'w', 1)")
    assert retries(db) == 0


def test_finishing_the_quiet_batch_leaves_the_other_queue_its_events(
    db: Connection, foreign: list[int]
) -> None:
    finish(db, next_batch(db))
    assert drain(db, "busy") == ["a", "b", "c"]


def test_no_role_can_read_a_table_with_the_events_of_several_queues(db: Connection) -> None:
    make_queue(db, "one")
    make_queue(db, "two")
    for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
        for table in ("event", f"event_group_{queue_id(db, 'one') // 64}"):
            right = "select has_table_privilege(%s, %s, 'select')"
            assert value(db, right, role, f"pgque.{table}") is False
