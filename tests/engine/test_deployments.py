"""A consumer belongs to the deployment that asked first, until somebody moves it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import Connection, make_queue, refused, rows, value, wait_until_blocked

ENTER = "select pgque.enter_deployment('q', 'c', %s)"
MOVE = "select pgque.move_to_deployment('q', 'c', %s)"


def test_the_first_deployment_gets_the_consumer_and_keeps_it(db: Connection) -> None:
    make_queue(db)
    assert [value(db, ENTER, "production") for _ in range(2)] == [1, 0]


def test_another_one_is_refused_with_both_names_and_the_way_to_move_it(db: Connection) -> None:
    make_queue(db)
    value(db, ENTER, "production")
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
    assert value(db, MOVE, "laptop") == "production"
    assert value(db, ENTER, "laptop") == 0
    with refused("PQ024", 'belongs to deployment "laptop"'):
        value(db, ENTER, "production")


def test_a_consumer_of_nobody_may_be_moved_and_one_may_stay(db: Connection) -> None:
    make_queue(db)
    assert [value(db, MOVE, "production") for _ in range(2)] == [None, None]
    assert value(db, ENTER, "production") == 0


def test_a_consumer_that_is_moved_to_its_own_deployment_is_there_since_before(
    db: Connection,
) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    since = "select since from pgque.consumer_deployment"
    before = value(db, since)
    value(db, MOVE, "production")
    assert value(db, since) == before


def test_a_consumer_that_is_registered_again_belongs_to_nobody(db: Connection) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    value(db, "select pgque.unregister_consumer('q', 'c')")
    value(db, "select pgque.register_consumer('q', 'c')")
    assert value(db, ENTER, "laptop") == 1


def test_of_two_that_ask_at_once_one_is_refused(
    db: Connection, another: Callable[[], Connection], background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    second = another()
    with db.transaction():
        value(db, ENTER, "production")
        asked = background.submit(value, second, ENTER, "laptop")
        wait_until_blocked(another(), second)
    with refused("PQ024"):
        asked.result(timeout=60)


@pytest.mark.parametrize("call", [ENTER, MOVE])
def test_a_deployment_gets_all_slots_while_their_number_changes(
    db: Connection,
    another: Callable[[], Connection],
    background: ThreadPoolExecutor,
    call: str,
) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.subscribe_slots('q', 'c', 2)")
    second = another()
    with db.transaction():
        value(db, call, "production")
        changed = background.submit(value, second, "select pgque.repartition('q', 'c', 3)")
        wait_until_blocked(another(), second)
    changed.result(timeout=60)
    with db.transaction():
        value(db, "select pgque.repartition('q', 'c', 4)")
        asked = background.submit(value, second, call, "production")
        wait_until_blocked(another(), second)
    asked.result(timeout=60)
    assert rows(
        db,
        "select d.deployment, count(*) from pgque.partition_slot_base b"
        " left join pgque.consumer_deployment d using (sub_id) group by 1",
    ) == [("production", 4)]


def test_states_name_the_deployment_also_for_subconsumers(db: Connection) -> None:
    make_queue(db)
    value(db, ENTER, "production")
    value(db, "select pgque.register_subconsumer('q', 'c', 'w', true)")
    sql = "select deployment from pgque.consumer_states('{q,q}'::text[], '{c,nobody}'::text[])"
    assert rows(db, sql) == [("production",), ("production",), (None,)]


def test_the_state_of_a_partitioned_consumer_names_its_own_deployment(db: Connection) -> None:
    make_queue(db, consumers=("other",))
    value(db, "select pgque.subscribe_slots('q', 'c', 2)")
    value(db, "select pgque.enter_deployment('q', 'other', 'another')")
    sql = "select deployment from pgque.consumer_states('{q}'::text[], '{c}'::text[])"
    before = rows(db, sql)
    value(db, ENTER, "production")
    assert (before, rows(db, sql)) == ([(None,)] * 3, [("production",)] * 3)


@pytest.mark.parametrize("call", [ENTER, MOVE])
@pytest.mark.parametrize("name", [None, ""])
def test_a_deployment_without_a_name_is_refused(
    db: Connection, call: str, name: str | None
) -> None:
    make_queue(db)
    with refused("PQ005", "no deployment"):
        value(db, call, name)


@pytest.mark.parametrize("function", ["enter_deployment", "move_to_deployment"])
def test_a_subconsumer_belongs_where_its_consumer_does(db: Connection, function: str) -> None:
    make_queue(db)
    value(db, "select pgque.register_subconsumer('q', 'c', 'w', true)")
    with refused("PQ015"):
        value(db, f"select pgque.{function}('q', 'c.w', 'production')")
