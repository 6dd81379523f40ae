"""The checks on dead letters, against a real queue."""

from typing import Any

import dagster as dg
import pytest

from pgque_dagster import build_dead_letter_checks, dead_letters_key
from pgque_dagster.client import Client, DeadLetter, QueueNotFound
from tests.support.checks import WARN, give_up, rows, run


def found(client: Client, **options: Any) -> dg.AssetCheckEvaluation:
    (result,) = run(build_dead_letter_checks(["orders"], **options), client.url).values()
    return result


def test_dead_letters_up_to_the_threshold_pass_and_one_more_fails(client: Client) -> None:
    give_up(client, "a")
    passing = found(client, max_dead_letters=1, severity=WARN)
    give_up(client, "b")
    failing = found(client, max_dead_letters=1, severity=WARN)

    assert passing.passed
    assert "what_to_do" not in passing.metadata
    assert (failing.passed, failing.severity) == (False, WARN)
    assert failing.asset_key == dead_letters_key("orders")
    assert failing.metadata["dead_letters"].value == 2
    assert failing.description == "2 dead letters, 1 allowed"
    assert "pgque_replay_dead_letters" in str(failing.metadata["what_to_do"].value)


def test_a_reason_with_a_limit_of_its_own_counts_for_no_other(client: Client) -> None:
    give_up(client, "a", "b", reason="not JSON: line 1")
    assert found(client, max_by_reason={"not JSON%": 2}).passed
    give_up(client, "c", reason="not JSON: line 2")
    failing = found(client, max_by_reason={"not JSON%": 2})

    assert not failing.passed
    assert failing.description == "3 dead letters for 'not JSON%', 2 allowed"
    assert rows(failing, "by_consumer_and_reason")[0]["dead_letters"] == 2


def test_reasons_fit_as_by_like_and_others_still_count(client: Client) -> None:
    for reason in ("not JSON", "a.b", "line 1\nline 2", "axb"):
        give_up(client, "payload", reason=reason)

    result = found(client, max_by_reason={"not_JSON": 9, "a.b": 9, "line%2": 9})

    assert result.description == "1 dead letters, 0 allowed"


def test_the_newest_dead_letters_are_shown(client: Client) -> None:
    give_up(client, *"abcdef", "g" * 500)

    newest = rows(found(client), "newest")

    assert [row["payload"] for row in newest] == ["g" * 200 + "…", *"fedc"]
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

    result = found(client, show_payloads=show_payloads)

    assert [row["payload"] for row in rows(result, "newest")] == [shown]
    assert "secret" not in str(result)


@pytest.mark.parametrize("name", ["max_dead_letters", "max_by_reason"])
def test_a_negative_limit_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: {"a": -1} if name == "max_by_reason" else -1}

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="0 or more"):
        build_dead_letter_checks(["orders"], **options)


def test_dead_letters_of_a_queue_that_does_not_exist_are_no_pass(client: Client) -> None:
    for check in build_dead_letter_checks(["nosuch"]):
        with pytest.raises(QueueNotFound, match="nosuch"):
            run([check], client.url)
