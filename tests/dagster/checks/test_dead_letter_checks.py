"""The checks on dead letters, against a real queue."""

from typing import Any

import dagster as dg
import pytest

from pgque_dagster import build_dead_letter_checks, dead_letters_key
from pgque_dagster.client import Client, QueueNotFound
from tests.support.dagster.checks import WARN, give_up, rows, run


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
    assert failing.description == "2 dead letters, 1 allowed; most of revenue: no good"
    assert "pgque_replay_dead_letters" in str(failing.metadata["what_to_do"].value)


def test_dead_letters_are_counted_by_consumer_and_reason_and_their_payloads_are_nowhere(
    client: Client,
) -> None:
    give_up(client, "secret", "secret", reason="x" * 700)
    give_up(client, "secret")

    result = found(client)

    counted = {row["reason"]: row["dead letters"] for row in rows(result, "by_consumer_and_reason")}
    assert counted == {"x" * 600 + "…": "2", "no good": "1"}
    assert "secret" not in str(result)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="0 or more"):
        build_dead_letter_checks(["orders"], max_dead_letters=-1)


def test_dead_letters_of_a_queue_that_does_not_exist_are_no_pass(client: Client) -> None:
    for check in build_dead_letter_checks(["nosuch"]):
        with pytest.raises(QueueNotFound, match="nosuch"):
            run([check], client.url)
