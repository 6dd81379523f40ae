"""Jobs on queues: adding, replay, purge and export of dead letters, pause and resume."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from pgque_dagster import PgqueResource, build_pgque_jobs, dead_letters_key, queue_key
from pgque_dagster.client import (
    Client,
    EventNotInBatch,
    InvalidArgument,
    QueueClosed,
    QueueNotFound,
)
from pgque_dagster.client.dead_letters import export_dead_letters
from pgque_dagster.jobs import queue_jobs
from tests.support.events import claim, publish, tick

JOBS = {job.name: job for job in build_pgque_jobs()}


def give_up(
    client: Client, *payloads: str, reason: str = "no good", consumer: str = "revenue"
) -> None:
    publish(client, payloads)
    give_up_next(client, reason, consumer)


def give_up_next(client: Client, reason: str, consumer: str) -> None:
    batch = claim(client, consumer=consumer)
    batch.dead_letter([event.msg_id for event in batch.events()], reason=reason)
    batch.ack()


def run(client: Client, name: str, **config: Any) -> dg.ExecuteInProcessResult:
    """Runs the job `pgque_<name>` of a code location; raises the error that fails it."""
    job = dg.Definitions(
        jobs=[JOBS[f"pgque_{name}"]], resources={"pgque": PgqueResource(url=client.url)}
    ).resolve_job_def(f"pgque_{name}")
    return job.execute_in_process(
        run_config={"ops": {name: {"config": {"queue": "orders", **config}}}}
    )


def seen(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, object]:
    """Returns the numbers that the job recorded on an asset."""
    (event,) = [each for each in result.all_events if each.is_asset_observation]
    observation = event.asset_observation_data.asset_observation
    assert observation.asset_key == key
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

    for job in definitions.resolve_all_job_defs():
        if job.name.startswith("pgque_"):
            assert job.description
            (op,) = job.graph.node_defs
            fields = op.config_schema.config_type.fields  # type: ignore[attr-defined]
            assert "queue" in fields
            assert all(field.description for field in fields.values()), job.name


# ---- add ---------------------------------------------------------------------------------------


def test_events_of_the_open_batch_become_dead_letters_and_leave_it(client: Client) -> None:
    _, poison, _ = publish(client, ["a", "poison", "c"])
    batch_id = client.next_batch("orders", "revenue")

    result = run(client, "add_dead_letters", consumer="revenue", events=[poison], reason="no id")

    counts = {"added": 1, "batch": batch_id, "left": 1}
    assert seen(result, dead_letters_key("orders")).items() >= counts.items()
    assert waiting(client) == ["a", "c"]
    assert [letter.reason for letter in client.dead_letters("orders")] == ["no id"]


def test_events_of_another_batch_fail_the_run_with_their_ids(client: Client) -> None:
    (event,) = publish(client, ["a"])
    client.next_batch("orders", "revenue")

    with pytest.raises(EventNotInBatch, match=f"has no event {event + 7}"):
        run(client, "add_dead_letters", consumer="revenue", events=[event, event + 7])

    assert left(client) == []


# ---- replay ------------------------------------------------------------------------------------


def test_a_replay_sends_all_again_and_says_how_many(client: Client) -> None:
    give_up(client, "a", "b")

    result = run(client, "replay_dead_letters")

    counts = {"replayed": 2, "not_replayed": 0, "left": 0}
    assert seen(result, dead_letters_key("orders")).items() >= counts.items()
    assert waiting(client) == ["a", "b"]


def test_a_replay_in_many_chunks_sends_each_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_jobs, "_CHUNK", 2)
    give_up(client, *"abcde")

    run(client, "replay_dead_letters")

    assert waiting(client) == list("abcde")
    assert left(client) == []


def test_events_that_are_given_up_again_during_the_replay_are_not_replayed_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(client, *"abcde", reason="other")
    give_up(client, "f", "g", reason="bad")
    replay = Client.replay_dead_letters

    def replay_and_give_up(self: Client, *args: Any, **options: Any) -> Any:
        done = replay(self, *args, **options)
        tick(client)
        give_up_next(client, "bad", "revenue")
        return done

    monkeypatch.setattr(queue_jobs, "_CHUNK", 2)
    monkeypatch.setattr(Client, "replay_dead_letters", replay_and_give_up)

    result = run(client, "replay_dead_letters", reason="bad")

    assert seen(result, dead_letters_key("orders"))["replayed"] == 2


@pytest.mark.parametrize(
    ("config", "replayed"),
    [
        ({"reason": "bad%"}, ["a", "b"]),
        ({"limit": 1}, ["a"]),
        ({"reason": "bad", "limit": 5}, ["a"]),
        ({"type": "default", "limit": 2}, ["a", "b"]),
        ({"until": (datetime.now(UTC) + timedelta(days=1)).isoformat()}, ["a", "b", "c"]),
    ],
)
def test_only_what_fits_is_replayed(
    client: Client, config: dict[str, Any], replayed: list[str]
) -> None:
    give_up(client, "a", reason="bad")
    give_up(client, "b", reason="bad luck")
    give_up(client, "c", reason="late")

    run(client, "replay_dead_letters", **config)

    assert waiting(client) == replayed
    assert left(client) == [each for each in "abc" if each not in replayed]


@pytest.mark.parametrize(
    "config",
    [
        {"type": "other"},
        {"limit": 0},
        {"since": (datetime.now(UTC) + timedelta(days=1)).isoformat()},
    ],
)
def test_where_nothing_fits_nothing_is_replayed(client: Client, config: dict[str, Any]) -> None:
    give_up(client, "a")

    run(client, "replay_dead_letters", **config)

    assert left(client) == ["a"]


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_dead_letters_that_cannot_be_replayed_stay_and_stop_no_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(queue_jobs, "_CHUNK", chunk)
    client.register_consumer("orders", "gone")
    give_up(client, "a", "b", "c", consumer="gone")
    give_up_next(client, "no good", "revenue")
    client.unregister_consumer("orders", "gone", keep_dead_letters=True)

    with pytest.raises(dg.Failure, match=r"3 dead letters .*gone") as failure:
        run(client, "replay_dead_letters")

    assert failure.value.metadata["replayed"].value == 3
    assert left(client) == ["a", "b", "c"]


@pytest.mark.parametrize("field", ["since", "until"])
@pytest.mark.parametrize(
    ("text", "words"), [("yesterday", "is not a time"), ("2026-05-01 12:00", "has no time zone")]
)
def test_a_time_that_cannot_be_read_is_refused_with_an_example(
    client: Client, field: str, text: str, words: str
) -> None:
    give_up(client, "a")

    with pytest.raises(InvalidArgument, match=rf"{field} .*{words}.*\+00:00"):
        run(client, "replay_dead_letters", **{field: text})

    assert left(client) == ["a"]


def test_a_queue_that_takes_no_events_gets_no_replay(client: Client) -> None:
    give_up(client, "a")
    client.configure_queue("orders", disable_insert="true")

    with pytest.raises(QueueClosed):
        run(client, "replay_dead_letters")

    assert left(client) == ["a"]


# ---- purge -------------------------------------------------------------------------------------


def test_a_purge_deletes_by_age_and_says_how_many(client: Client) -> None:
    give_up(client, "a", "b")

    kept = run(client, "purge_dead_letters")
    purged = run(client, "purge_dead_letters", older_than_days=0)

    key = dead_letters_key("orders")
    assert seen(kept, key).items() >= {"purged": 0, "left": 2}.items()
    assert seen(purged, key).items() >= {"purged": 2, "left": 0}.items()


def test_a_purge_of_a_negative_age_is_refused(client: Client) -> None:
    give_up(client, "a")

    with pytest.raises(Exception, match="older_than_days"):
        run(client, "purge_dead_letters", older_than_days=-1)

    assert left(client) == ["a"]


# ---- export ------------------------------------------------------------------------------------


def test_an_export_as_json_lines_has_all_of_each_dead_letter_in_order(
    client: Client, tmp_path: Path
) -> None:
    give_up(client, "not JSON: ü\n", '{"id": 1}')
    path = tmp_path / "letters.jsonl"

    result = run(client, "export_dead_letters", path=str(path))

    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [each["payload"] for each in written] == ["not JSON: ü\n", '{"id": 1}']
    assert written[0].items() >= {"consumer": "revenue", "reason": "no good"}.items()
    assert datetime.fromisoformat(written[0]["event_time"]).tzinfo is not None
    assert seen(result, dead_letters_key("orders"))["exported"] == 2
    assert len(left(client)) == 2


def test_an_export_as_parquet_has_the_same(client: Client, tmp_path: Path) -> None:
    give_up(client, "a", "b")
    path = tmp_path / "letters.parquet"

    run(client, "export_dead_letters", path=str(path), file_format="PARQUET")

    rows = pq.read_table(path).to_pylist()
    (letters,) = export_dead_letters(client, "orders")
    assert [row["payload"] for row in rows] == ["a", "b"]
    assert [(row["id"], row["event_time"]) for row in rows] == [
        (letter.id, letter.event_time) for letter in letters
    ]


@pytest.mark.parametrize("file_format", ["JSON_LINES", "PARQUET"])
def test_a_queue_without_dead_letters_makes_an_empty_file(
    client: Client, tmp_path: Path, file_format: str
) -> None:
    path = tmp_path / "letters"

    run(client, "export_dead_letters", path=str(path), file_format=file_format)

    if file_format == "PARQUET":
        assert pq.read_table(path).num_rows == 0
    else:
        assert path.read_bytes() == b""


def test_dead_letters_of_many_pages_come_each_once(client: Client) -> None:
    give_up(client, *"abcde")

    pages = list(export_dead_letters(client, "orders", page=2))

    assert [[letter.payload for letter in page] for page in pages] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]


def test_a_file_that_exists_is_overwritten_only_when_told_to(
    client: Client, tmp_path: Path
) -> None:
    give_up(client, "a")
    path = tmp_path / "letters.jsonl"
    path.write_text("mine")

    with pytest.raises(InvalidArgument, match="exists"):
        run(client, "export_dead_letters", path=str(path))
    assert path.read_text() == "mine"
    run(client, "export_dead_letters", path=str(path), overwrite=True)

    assert json.loads(path.read_text())["payload"] == "a"


def test_an_export_that_fails_leaves_the_old_file_and_nothing_else(
    client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_text("mine")

    with pytest.raises(QueueNotFound):
        run(client, "export_dead_letters", path=str(path), overwrite=True, queue="nosuch")

    assert [each.name for each in tmp_path.iterdir()] == ["letters.jsonl"]
    assert path.read_text() == "mine"


def test_an_export_into_a_folder_that_is_missing_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no folder"):
        run(client, "export_dead_letters", path=str(tmp_path / "missing" / "file"))


# ---- pause and resume --------------------------------------------------------------------------


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(client: Client) -> None:
    paused = run(client, "pause_queue")
    client.send("orders", "a")
    client.ticker()
    while_paused = client.claim("orders", "revenue", owner="a test")
    resumed = run(client, "resume_queue")

    assert seen(paused, queue_key("orders"))["paused"] is True
    assert while_paused is None
    assert seen(resumed, queue_key("orders"))["paused"] is False
    assert waiting(client) == ["a"]


@pytest.mark.parametrize("name", ["pause_queue", "replay_dead_letters", "purge_dead_letters"])
def test_a_queue_that_does_not_exist_is_named(client: Client, name: str) -> None:
    with pytest.raises(QueueNotFound, match="nosuch"):
        run(client, name, queue="nosuch")
