"""A consumer belongs to one asset of Dagster, and health says when that asset is gone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues.sql import Connection, refused

ENTER = "select pgque.enter_deployment('q', %s, %s, %s, %s::text[])"
MOVE = "select pgque.move_to_deployment('q', 'c', %s, %s, %s::text[])"
NOTE = "select pgque.note_location(%s, %s, %s::text[], %s::text[], %s::text[])"
OF_C = "select deployment, location, assets from pgque.consumer_states('{q}', '{c}')"
HEALTH = "select status, detail from pgque.queue_health() where check_name = 'consumer_asset:c'"
TEAM_A = ("prod", "a", ["team_a/revenue"])
TEAM_B = ("prod", "b", ["team_b/revenue"])


def enter(
    q: Connection,
    deployment: str | None,
    location: str | None,
    assets: list[str],
    consumer: str = "c",
) -> object:
    return q.value(ENTER, consumer, deployment, location, assets)


def note(q: Connection, deployment: str | None, location: str, *assets: str) -> None:
    """Notes that all these assets consume with `c`."""
    count = len(assets)
    q.value(NOTE, deployment, location, ["q"] * count, ["c"] * count, list(assets))


def let_pass(q: Connection, time: str) -> None:
    """Lets the time pass in which no sensor notes the location and nobody consumes."""
    q.execute(f"update pgque.code_location set seen_at = seen_at - interval '{time}'")
    q.execute(f"update pgque.position_log set sub_active = sub_active - interval '{time}'")


@pytest.mark.parametrize(
    "other",
    [("prod", "a", ["team_b/revenue"]), ("prod", "b", ["team_a/revenue"])],
    ids=["asset", "location"],
)
def test_another_asset_is_refused_with_both_names_and_what_to_type(
    q: Connection, other: tuple[str, str, list[str]]
) -> None:
    assert [enter(q, *TEAM_A) for _ in range(2)] == [1, 0]
    deployment, location, (asset,) = other
    statement = (
        f"select pgque.move_to_deployment('q', 'c', '{deployment}', '{location}', '{{{asset}}}')"
    )

    with refused(
        "PQ024",
        'belongs to deployment "prod", location "a", asset team_a/revenue',
        f'this is deployment "prod", location "{location}", asset {asset}',
        "another consumer",
        statement,
    ):
        enter(q, *other)

    q.execute(statement)
    assert enter(q, *other) == 0
    with refused("PQ024"):
        enter(q, *TEAM_A)


def test_a_step_may_get_further_assets_and_lose_some(q: Connection) -> None:
    enter(q, "prod", "a", ["counts"])
    enter(q, "prod", "a", ["counts", "totals"])
    enter(q, "prod", "a", ["totals"])
    assert q.rows(OF_C) == [("prod", "a", ["totals"])]


def test_what_is_not_known_is_not_compared_and_recorded_once_it_is(q: Connection) -> None:
    q.value("select pgque.enter_deployment('q', 'c', 'prod')")  # as version 0.3 did
    enter(q, None, None, ["revenue"])
    enter(q, "prod", "a", ["revenue"])
    enter(q, "prod", None, ["revenue"])
    assert q.rows(OF_C) == [("prod", "a", ["revenue"])]
    with refused("PQ024", 'location "b"'):
        enter(q, None, "b", ["revenue"])


def test_of_two_assets_that_ask_at_once_for_a_consumer_of_an_earlier_version_one_is_refused(
    q: Connection,
) -> None:
    q.value("select pgque.enter_deployment('q', 'c', 'prod')")
    one, two, watch = q.another(), q.another(), q.another()
    with ThreadPoolExecutor(2) as pool:
        with q.transaction():
            # Both have read that nobody's asset is known, and wait to record theirs.
            q.execute("select from pgque.consumer_deployment for update")
            first = pool.submit(enter, one, *TEAM_A)
            watch.wait_until_blocked(one)
            second = pool.submit(enter, two, *TEAM_B)
            watch.wait_until_blocked(two)
        assert first.result() == 0
        with refused("PQ024", 'location "a"'):
            second.result()
    assert q.rows(OF_C) == [TEAM_A]


def test_a_claim_of_its_owner_writes_nothing(q: Connection) -> None:
    enter(q, *TEAM_A)
    rows = "select ctid::text, xmin::text from pgque.consumer_deployment"
    before = q.rows(rows)
    enter(q, *TEAM_A)
    assert q.rows(rows) == before


def test_a_consumer_that_is_registered_again_belongs_to_no_asset(q: Connection) -> None:
    enter(q, *TEAM_A)
    q.value("select pgque.unregister_consumer('q', 'c')")
    q.value("select pgque.register_consumer('q', 'c')")
    assert enter(q, *TEAM_B) == 1


def test_health_names_a_consumer_whose_asset_is_gone_at_once(q: Connection) -> None:
    enter(q, *TEAM_A)
    note(q, "prod", "a", "team_a/revenue")
    assert q.rows(HEALTH) == []

    note(q, "prod", "a", "team_a/income")  # renamed
    note(q, "prod", "b", "team_a/revenue")  # moved: another location has no say

    ((status, detail),) = q.rows(HEALTH)
    assert status == "critical"
    assert 'belongs to deployment "prod", location "a", asset team_a/revenue' in detail
    assert "gone from there" in detail
    assert "select pgque.unregister_consumer('q', 'c');" in detail

    note(q, "prod", "a", "team_a/revenue")
    assert q.rows(HEALTH) == []


@pytest.mark.parametrize("deployment", ["prod", None])
def test_health_names_a_consumer_whose_location_is_gone_unless_a_schedule_starts_its_runs(
    q: Connection, deployment: str | None
) -> None:
    enter(q, deployment, "a", ["revenue"])
    note(q, deployment, "a", "revenue")
    for time, status in (("11 minutes", "warning"), ("2 hours", "critical")):
        let_pass(q, time)
        ((found, detail),) = q.rows(HEALTH)
        assert found == status
        assert "which was last seen at" in detail

    q.publish("a")
    assert q.rows("select batch_id from pgque.claim_batch('q', 'c', 'run', '1 minute')")

    assert q.rows(HEALTH) == []


def test_an_asset_of_a_location_without_a_sensor_is_not_judged(q: Connection) -> None:
    enter(q, *TEAM_A)
    note(q, "prod", "b")
    note(q, "laptop", "a")
    assert q.rows(HEALTH) == []


def test_health_names_a_consumer_with_slots_once(bare: Connection) -> None:
    bare.value("select pgque.subscribe_slots('q', 'c', 3)")
    enter(bare, *TEAM_A)
    note(bare, "prod", "a")
    assert [status for status, _ in bare.rows(HEALTH)] == ["critical"]
    bare.value("select pgque.repartition('q', 'c', 2)")
    assert bare.rows(f"{OF_C} group by 1, 2, 3") == [TEAM_A]
    with refused("PQ024"):
        enter(bare, *TEAM_B)
