"""The checks on dead letters, against a real queue."""

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import build_dead_letter_checks, dead_letters_key
from pgque_dagster.client import Client, ConnectionFailed, DeadLetter, QueueNotFound
from tests.support.checks import ERROR, WARN, give_up, rows, run
from tests.support.events import make_queue


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

    assert (first, within, beyond, quiet) == ((False, 2), (True, 1), (False, 2), (True, 0))


def test_the_first_evaluation_passes_only_where_nothing_was_given_up_before(
    client: Client,
) -> None:
    checks = build_dead_letter_checks(["orders"], max_growth=1)[-1:]

    (nothing,) = run(checks, client.url).values()
    give_up(client, "a")
    (little,) = run(checks, client.url).values()
    give_up(client, "b")
    (much,) = run(checks, client.url).values()

    assert nothing.passed
    assert nothing.description == "first evaluation: 0 events were given up before it"
    assert (little.passed, little.severity) == (False, WARN)
    assert (much.passed, much.severity) == (False, ERROR)
    assert much.description == "first evaluation: 2 events were given up before it"
    assert "pgque_replay_dead_letters" in str(much.metadata["what_to_do"].value)


def test_evaluations_without_a_database_are_red_and_do_not_end_the_comparison(
    client: Client, instance: dg.DagsterInstance
) -> None:
    checks = build_dead_letter_checks(["orders"], max_growth=1)[-1:]
    run(checks, client.url, instance)
    give_up(client, "a", "b", "c")
    for _ in range(21):
        with pytest.raises(ConnectionFailed):
            run(checks, "postgresql://nobody@127.0.0.1:1/none", instance)

    (result,) = run(checks, client.url, instance).values()

    assert not result.passed
    assert result.description == "3 events were given up since the last evaluation, 1 allowed"


def test_the_last_result_is_found_behind_more_than_a_page_of_evaluations_without_one(
    client: Client, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgque_dagster.checks.dead_letters._PAGE", 2)
    checks = build_dead_letter_checks(["orders"], max_growth=1)[-1:]
    run(checks, client.url, instance)
    for _ in range(5):
        with pytest.raises(ConnectionFailed):
            run(checks, "postgresql://nobody@127.0.0.1:1/none", instance)

    (result,) = run(checks, client.url, instance).values()

    assert result.description == "0 events were given up since the last evaluation, 1 allowed"


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
