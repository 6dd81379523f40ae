"""Jobs on queues: replay, purge and export of dead letters, pause and resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, build_pgque_jobs, dead_letters_key, queue_key
from pgque_dagster.client import CallRefused, Client, EventNotInBatch, QueueNotFound
from tests.support.dagster.checks import give_up
from tests.support.queues.events import claim, publish, tick

JOBS = {job.name: job for job in build_pgque_jobs()}


def run(client: Client, name: str, **config: Any) -> dict[str, object]:
    """Runs the job `pgque_<name>` of a code location, or raises the error that fails it.

    Returns:
        What the job recorded on the queue, or on its dead letters.
    """
    job = dg.Definitions(
        jobs=[JOBS[f"pgque_{name}"]], resources={"pgque": PgqueResource(url=client.url)}
    ).resolve_job_def(f"pgque_{name}")
    result = job.execute_in_process(
        run_config={"ops": {name: {"config": {"queue": "orders", **config}}}}
    )
    (event,) = [each for each in result.all_events if each.is_asset_observation]
    observation = event.asset_observation_data.asset_observation
    key = dead_letters_key if name.endswith("dead_letters") else queue_key
    assert observation.asset_key == key("orders")
    return {name: each.value for name, each in observation.metadata.items()}


def waiting(client: Client) -> list[str | None]:
    """Returns the events of the next batch."""
    tick(client)
    batch = claim(client)
    payloads = [event.payload for event in batch.events()]
    batch.ack()
    return payloads


def left(client: Client) -> list[str | None]:
    return sorted(str(letter.payload) for letter in client.dead_letters("orders"))


def test_the_jobs_load_and_each_field_of_their_config_is_explained() -> None:
    definitions = dg.Definitions(jobs=build_pgque_jobs(), resources={"pgque": PgqueResource()})

    jobs = [each for each in definitions.resolve_all_job_defs() if each.name in JOBS]
    assert len(jobs) == len(JOBS)
    for job in jobs:
        assert job.description
        (op,) = job.graph.node_defs
        fields = op.config_schema.config_type.fields  # type: ignore[attr-defined]
        assert "queue" in fields
        assert all(field.description for field in fields.values()), job.name


def test_a_replay_sends_each_once_and_says_how_many(client: Client) -> None:
    give_up(client, *"abcde")

    seen = run(client, "replay_dead_letters")

    assert seen.items() >= {"replayed": 5, "not_replayed": 0, "left": 0}.items()
    assert waiting(client) == list("abcde")
    assert left(client) == []


@pytest.mark.parametrize(
    ("config", "replayed"),
    [
        ({"reason": "bad%"}, "ab"),
        ({"limit": 1}, "a"),
        ({"reason": "bad", "limit": 5}, "a"),
        ({"type": "default", "limit": 2}, "ab"),
        ({"type": "other"}, ""),
        ({"since": "2h"}, "bc"),
    ],
)
def test_only_what_fits_is_replayed(
    client: Client, sql: Callable[[str], None], config: dict[str, Any], replayed: str
) -> None:
    for payload, reason in (("a", "bad"), ("b", "bad luck"), ("c", "late")):
        give_up(client, payload, reason=reason)
    sql("update pgque.dead_letter set dl_time = dl_time - interval '3 hours' where ev_data = 'a'")

    assert run(client, "replay_dead_letters", **config)["replayed"] == len(replayed)
    assert left(client) == sorted(set("abc") - set(replayed))
    assert not replayed or waiting(client) == list(replayed)


def test_dead_letters_that_cannot_be_replayed_stay_and_stop_no_others(client: Client) -> None:
    client.register_consumer("orders", "gone")
    give_up(client, "a", "b", "c", consumer="gone")
    give_up(client)
    client.unregister_consumer("orders", "gone", keep_dead_letters=True, skip=True)

    with pytest.raises(dg.Failure, match=r"3 dead letters .*gone") as failure:
        run(client, "replay_dead_letters")

    assert failure.value.metadata["replayed"].value == 3
    assert left(client) == ["a", "b", "c"]


def test_what_cannot_be_done_is_refused_and_leaves_the_dead_letters(
    client: Client, tmp_path: Path
) -> None:
    give_up(client, "a")
    client.configure_queue("orders", disable_insert="true")

    with pytest.raises(CallRefused):
        run(client, "replay_dead_letters")
    for config in ({"limit": 0}, {"reason": ""}, {"type": ""}, {"since": "soon"}):
        with pytest.raises(Exception, match="|".join(config)):
            run(client, "replay_dead_letters", **config)
    with pytest.raises(Exception, match="older_than_days"):
        run(client, "purge_dead_letters", older_than_days=-1)
    for name in ("replay_dead_letters", "purge_dead_letters"):
        with pytest.raises(QueueNotFound, match="nosuch"):
            run(client, name, queue="nosuch")
    assert left(client) == ["a"]


def test_a_purge_deletes_by_age_and_says_how_many(client: Client) -> None:
    give_up(client, "a", "b")

    kept = run(client, "purge_dead_letters")
    purged = run(client, "purge_dead_letters", older_than_days=0)

    assert kept.items() >= {"purged": 0, "left": 2}.items()
    assert purged.items() >= {"purged": 2, "left": 0}.items()


def test_events_of_the_open_batch_become_dead_letters_and_leave_it(client: Client) -> None:
    _, poison, _ = publish(client, ["a", "poison", "c"])
    batch_id = client.next_batch("orders", "revenue")

    seen = run(client, "add_dead_letters", consumer="revenue", events=[poison], reason="no id")

    counts = {"added": 1, "batch": batch_id, "left": 1}
    assert seen.items() >= counts.items()
    assert waiting(client) == ["a", "c"]
    assert [letter.reason for letter in client.dead_letters("orders")] == ["no id"]


def test_events_of_another_batch_fail_the_run_with_their_ids(client: Client) -> None:
    (event,) = publish(client, ["a"])
    client.next_batch("orders", "revenue")

    with pytest.raises(EventNotInBatch, match=f"has no event {event + 7}"):
        run(client, "add_dead_letters", consumer="revenue", events=[event, event + 7])

    assert left(client) == []
