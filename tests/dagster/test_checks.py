"""Checks on dead letters, on lag and on health, against a real queue."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest

from pgque_dagster import (
    PgqueResource,
    SparkBatch,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_queue_assets,
    build_queue_health_checks,
    dead_letters_key,
    pgque_asset,
    queue_key,
)
from pgque_dagster.checks.health import CHECKS
from pgque_dagster.client import Client, DeadLetter, QueueNotFound
from tests.support.events import claim, make_queue, publish, tick

WARN = dg.AssetCheckSeverity.WARN
ERROR = dg.AssetCheckSeverity.ERROR


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        make_queue(client)
        yield client


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def sql(database_url: str) -> Iterator[Callable[[str], None]]:
    """Changes what only time would change."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement.encode()) and None


def give_up(client: Client, *payloads: str, reason: str = "no good", queue: str = "orders") -> None:
    publish(client, payloads, queue)
    batch = claim(client, queue)
    batch.dead_letter([event.msg_id for event in batch.events()], reason=reason)
    batch.ack()


def run(
    checks: list[dg.AssetChecksDefinition],
    url: str,
    instance: dg.DagsterInstance | None = None,
    only: list[dg.AssetCheckKey] | None = None,
) -> dict[str, dg.AssetCheckEvaluation]:
    """Runs the checks as a schedule's job does; returns their results by name."""
    keys = only or [key for check in checks for key in check.check_keys]
    definitions = dg.Definitions(
        asset_checks=checks,
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(*keys))],
        resources={"pgque": PgqueResource(url=url)},
    )
    result = definitions.resolve_job_def("checks").execute_in_process(
        instance=instance, raise_on_error=True
    )
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def rows(evaluation: dg.AssetCheckEvaluation, name: str) -> list[dict[str, Any]]:
    table = evaluation.metadata[name]
    assert isinstance(table, dg.TableMetadataValue)
    return [dict(record.data) for record in table.records]


# ---- dead letters ------------------------------------------------------------------------------


def test_dead_letters_up_to_the_threshold_pass_and_one_more_fails(client: Client) -> None:
    checks = build_dead_letter_checks(["orders"], max_dead_letters=1, severity=WARN)
    give_up(client, "a")
    passing = run(checks, client.url)["dead_letters"]
    give_up(client, "b")
    failing = run(checks, client.url)["dead_letters"]

    assert passing.passed
    assert "what_to_do" not in passing.metadata
    assert not failing.passed
    assert failing.severity == WARN
    assert failing.asset_key == dead_letters_key("orders")
    assert failing.metadata["dead_letters"].value == 2
    assert failing.description == "2 dead letters, 1 allowed"
    assert "pgque_replay_dead_letters" in str(failing.metadata["what_to_do"].value)


def test_a_reason_with_a_limit_of_its_own_counts_for_no_other(client: Client) -> None:
    checks = build_dead_letter_checks(["orders"], max_by_reason={"not JSON%": 2})
    give_up(client, "a", "b", reason="not JSON: line 1")
    passing = run(checks, client.url)["dead_letters"]
    give_up(client, "c", reason="not JSON: line 2")
    failing = run(checks, client.url)["dead_letters"]

    assert passing.passed
    assert not failing.passed
    assert failing.description == "3 dead letters for 'not JSON%', 2 allowed"
    assert rows(failing, "by_consumer_and_reason")[0]["dead_letters"] == 2


def test_reasons_fit_as_by_like_and_others_still_count(client: Client) -> None:
    for reason in ("not JSON", "a.b", "line 1\nline 2", "axb"):
        give_up(client, "payload", reason=reason)
    limits = {"not_JSON": 9, "a.b": 9, "line%2": 9}

    (result,) = run(build_dead_letter_checks(["orders"], max_by_reason=limits), client.url).values()

    assert result.description == "1 dead letters, 0 allowed"


def test_the_newest_dead_letters_are_shown(client: Client) -> None:
    give_up(client, "a", "b", "c" * 500)

    (result,) = run(build_dead_letter_checks(["orders"], sample_rows=2), client.url).values()

    newest = rows(result, "newest")
    assert [row["payload"] for row in newest] == ["c" * 200 + "…", "b"]
    assert newest[0]["reason"] == "no good"


def raising(letter: DeadLetter) -> str:
    raise ValueError(letter.payload)


@pytest.mark.parametrize(
    ("show_payloads", "shown"),
    [
        (False, "(hidden)"),
        (lambda letter: f"{len(letter.payload)} signs", "6 signs"),
        (lambda letter: None, ""),
        (raising, "(hidden: show_payloads raised ValueError)"),
    ],
)
def test_a_payload_that_is_not_to_be_shown_is_nowhere(
    client: Client, show_payloads: Any, shown: str
) -> None:
    give_up(client, "secret")

    (result,) = run(
        build_dead_letter_checks(["orders"], show_payloads=show_payloads), client.url
    ).values()

    assert [row["payload"] for row in rows(result, "newest")] == [shown]
    assert "secret" not in str(result)


def test_growth_is_what_was_given_up_since_the_last_evaluation_whatever_became_of_it(
    client: Client, instance: dg.DagsterInstance
) -> None:
    checks = build_dead_letter_checks(["orders"], max_dead_letters=99, max_growth=1)

    def growth() -> tuple[bool, object]:
        result = run(checks, client.url, instance)["dead_letters_growth"]
        return result.passed, result.metadata["growth"].value

    give_up(client, "a", "b")
    first = growth()
    give_up(client, "c")
    within = growth()
    give_up(client, "d", "e")
    client.purge_dead_letters("orders", timedelta(0))
    beyond = growth()
    quiet = growth()

    assert (first, within, beyond, quiet) == ((True, 0), (True, 1), (False, 2), (True, 0))


def test_growth_of_a_queue_that_was_made_again_counts_from_its_start(
    client: Client, instance: dg.DagsterInstance
) -> None:
    checks = build_dead_letter_checks(["orders"], max_growth=1)
    give_up(client, "a", "b", "c")
    run(checks, client.url, instance)
    client.drop_queue("orders", force=True)
    make_queue(client)
    give_up(client, "d", "e")

    result = run(checks, client.url, instance)["dead_letters_growth"]

    assert result.metadata["growth"].value == 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_dead_letters": -1},
        {"max_growth": -1},
        {"sample_rows": -1},
        {"max_by_reason": {"a": -1}},
    ],
)
def test_a_negative_limit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="0 or more"):
        build_dead_letter_checks(["orders"], **options)


@pytest.mark.parametrize("max_growth", [None, 1])
def test_dead_letters_of_a_queue_that_does_not_exist_are_no_pass(
    client: Client, max_growth: int | None
) -> None:
    checks = build_dead_letter_checks(["nosuch"], max_growth=max_growth)

    with pytest.raises(QueueNotFound, match="nosuch"):
        run(checks[-1:], client.url)


# ---- lag ---------------------------------------------------------------------------------------


def lag_of(client: Client, **options: Any) -> dg.AssetCheckEvaluation:
    options = {"max_lag": timedelta(hours=1), **options}
    (result,) = run(build_consumer_lag_checks([revenue], **options), client.url).values()
    return result


def make_older(sql: Callable[[str], None]) -> None:
    """As if all ticks so far had been made an hour ago."""
    sql("update pgque.tick set tick_time = tick_time - interval '1 hour'")


def test_a_consumer_within_its_budget_passes(client: Client) -> None:
    publish(client, ["a"])

    result = lag_of(client)

    assert result.passed
    assert result.asset_key == revenue.key
    assert result.metadata["pending_events"].value == 1
    assert 0 < float(str(result.metadata["lag_seconds"].value)) < 3600


def test_a_consumer_that_nothing_waits_for_is_not_behind_however_old_its_tick(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    tick(client)

    result = lag_of(client, max_lag=timedelta(minutes=1))

    assert result.passed
    assert result.metadata["lag_seconds"].value == 0.0


def test_a_consumer_behind_its_budget_fails_and_is_told_what_to_do(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    publish(client, ["a"])

    warned = lag_of(client, max_lag=timedelta(hours=2), warn_lag=timedelta(minutes=30))
    failed = lag_of(client, max_lag=timedelta(minutes=30))

    assert (warned.passed, warned.severity) == (False, WARN)
    assert (failed.passed, failed.severity) == (False, ERROR)
    assert "0:30:00 allowed" in str(failed.description)
    assert "see that the sensor or worker of revenue runs" in str(
        failed.metadata["what_to_do"].value
    )


def test_events_that_wait_may_be_too_many_whatever_their_age(client: Client) -> None:
    publish(client, ["a", "b"])

    failing = lag_of(client, max_pending_events=1)
    passing = lag_of(client, max_pending_events=2)

    assert failing.description == "2 events wait, 1 allowed"
    assert passing.passed


def test_what_to_do_names_who_works_on_the_batch_or_who_left_it(client: Client) -> None:
    publish(client, ["a"])
    batch = claim(client)
    held = lag_of(client, max_pending_events=0)
    batch.release()
    left = lag_of(client, max_pending_events=0)

    assert '"a test"' in str(held.metadata["what_to_do"].value)
    assert "nobody works on it" in str(left.metadata["what_to_do"].value)


def test_a_batch_that_a_part_of_a_shared_consumer_holds_counts_as_behind(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("select pgque.register_subconsumer('orders', 'revenue', 'one', true)")
    make_older(sql)
    publish(client, ["a"])
    sql("select pgque.next_batch('orders', 'revenue', 'one')")

    result = lag_of(client, max_lag=timedelta(minutes=30))

    assert not result.passed
    assert result.metadata["pending_events"].value == 1


def test_a_consumer_that_is_not_registered_is_a_warning(client: Client) -> None:
    client.unregister_consumer("orders", "revenue")

    result = lag_of(client)

    assert (result.passed, result.severity) == (False, WARN)
    assert "not registered" in str(result.description)


@pytest.mark.parametrize(
    "options",
    [
        {"max_lag": timedelta(0)},
        {"max_lag": timedelta(1), "warn_lag": timedelta(1)},
        {"max_lag": timedelta(1), "warn_lag": timedelta(0)},
        {"max_lag": timedelta(1), "max_pending_events": -1},
    ],
)
def test_a_lag_budget_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        build_consumer_lag_checks([revenue], **options)


def test_an_asset_that_consumes_nothing_has_no_lag() -> None:
    @dg.asset
    def plain() -> None:
        """Has no queue."""

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="consumes no queue"):
        build_consumer_lag_checks([plain], max_lag=timedelta(1))


# ---- health ------------------------------------------------------------------------------------


def test_there_is_a_check_for_each_one_of_the_sql_side(client: Client) -> None:
    in_sql = {check.check.partition(":")[0] for check in client.health()}

    assert set(CHECKS) == in_sql


def test_a_healthy_queue_passes_all_checks(client: Client) -> None:
    tick(client)

    results = run(build_queue_health_checks(["orders"]), client.url)

    assert set(results) == set(CHECKS)
    assert [name for name, result in results.items() if not result.passed] == []
    assert {result.asset_key for result in results.values()} == {queue_key("orders")}


def test_a_warning_of_sql_is_one_in_dagster_with_what_to_do(client: Client) -> None:
    client.pause_queue("orders")

    result = run(build_queue_health_checks(["orders"]), client.url)["ticker_running"]

    assert (result.passed, result.severity) == (False, WARN)
    assert "ticker_paused" in str(result.metadata["what_to_do"].value)


def test_what_is_critical_in_sql_is_an_error_in_dagster(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)

    result = run(build_queue_health_checks(["orders"]), client.url)["ticker_running"]

    assert (result.passed, result.severity) == (False, ERROR)


def test_the_worst_consumer_decides_and_all_are_shown(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '30 minutes'")
    make_older(sql)
    publish(client, ["a"])
    client.register_consumer("orders", "audit")

    result = run(build_queue_health_checks(["orders"]), client.url)["consumer_lag"]

    assert (result.passed, result.severity) == (False, ERROR)
    assert {(row["consumer"], row["status"]) for row in rows(result, "consumers")} == {
        ("audit", "ok"),
        ("revenue", "critical"),
    }


def test_other_queues_stay_out(client: Client) -> None:
    make_queue(client, "returns")
    tick(client)
    client.pause_queue("returns")

    assert run(build_queue_health_checks(["orders"]), client.url)["ticker_running"].passed


def test_one_health_check_can_run_by_itself(client: Client) -> None:
    checks = build_queue_health_checks(["orders", "returns"])
    make_queue(client, "returns")

    results = run(checks, client.url, only=[dg.AssetCheckKey(queue_key("returns"), "dlq_health")])

    assert list(results) == ["dlq_health"]


def test_the_health_of_a_queue_that_does_not_exist_is_an_error(client: Client) -> None:
    results = run(build_queue_health_checks(["nosuch"]), client.url)

    assert {(each.passed, each.severity) for each in results.values()} == {(False, ERROR)}
    assert "nosuch does not exist" in str(results["dlq_health"].description)


def test_health_checks_of_queues_with_like_names_load_together() -> None:
    queues = ("a.b", "a-b", "a_b")

    dg.Definitions(
        assets=[spec for queue in queues for spec in build_queue_assets(queue)],
        asset_checks=[check for queue in queues for check in build_queue_health_checks([queue])],
        resources={"pgque": PgqueResource(url="unused")},
    ).resolve_all_job_defs()


# ---- both --------------------------------------------------------------------------------------


def test_an_automation_condition_has_all_of_them_evaluated(instance: dg.DagsterInstance) -> None:
    idle = ~dg.AutomationCondition.in_progress()
    checks = [
        *build_dead_letter_checks(["orders"], max_growth=1, automation_condition=idle),
        *build_consumer_lag_checks([revenue], max_lag=timedelta(1), automation_condition=idle),
        *build_queue_health_checks(["orders"], automation_condition=idle),
    ]
    definitions = dg.Definitions(
        assets=[*build_queue_assets("orders"), revenue],
        asset_checks=checks,
        resources={"pgque": PgqueResource(url="unused"), "pyspark": None},
    )

    result = dg.evaluate_automation_conditions(definitions, instance)

    requested = {each.key for each in result.results if not each.true_subset.is_empty}
    assert requested == {key for check in checks for key in check.check_keys}
