"""A consumer belongs to the deployment that asked first, until somebody moves it."""

import pytest

from tests.support.queues import Connection, make_queue, refused, rows, value
from tests.support.races import Another, race

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
