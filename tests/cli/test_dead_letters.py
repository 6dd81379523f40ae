"""`pgque dead-letters`: list, add, replay, purge."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from click.testing import Result

from pgque_dagster.client import Client, Limits
from pgque_dagster.client.cooperative import claim_shared, register_subconsumer

TTL = timedelta(minutes=1)
Pgque = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture
def two_dead_letters(client: Client) -> list[int]:
    """Two events that the consumer gave up; their ids as dead letters."""
    client.send_batch("orders", ["first", "x" * 200])
    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    batch.dead_letter([event.msg_id for event in batch.events()], reason="not JSON")
    batch.ack()
    return sorted(letter.id for letter in client.dead_letters("orders"))


@pytest.mark.usefixtures("two_dead_letters")
def test_list_shows_them_shortened_or_in_full(pgque: Pgque) -> None:
    short = pgque("dead-letters", "list", "orders").output
    full = pgque("dead-letters", "list", "orders", "--full").output

    assert "first" in short
    assert "not JSON" in short
    assert "x" * 61 not in short
    assert "x" * 200 in full


@pytest.mark.usefixtures("two_dead_letters")
def test_list_shows_no_more_than_asked_for(pgque: Pgque) -> None:
    assert len(pgque("dead-letters", "list", "orders", "--limit", "1").output.splitlines()) == 2


@pytest.mark.usefixtures("two_dead_letters")
def test_replay_sends_all_of_a_queue_again(pgque: Pgque, client: Client) -> None:
    assert pgque("dead-letters", "replay", "orders").output == "dead letters replayed: 2\n"

    assert client.dead_letters("orders") == []


def test_replay_sends_those_of_an_id_again(
    pgque: Pgque, client: Client, two_dead_letters: list[int]
) -> None:
    first, second = two_dead_letters

    pgque("dead-letters", "replay", "--id", str(first))

    assert [letter.id for letter in client.dead_letters("orders")] == [second]


def test_replay_of_an_unknown_id_replays_none(
    refused: Refused, client: Client, two_dead_letters: list[int]
) -> None:
    assert "999" in refused("dead-letters", "replay", "--id", str(two_dead_letters[0]), "--id=999")

    assert len(client.dead_letters("orders")) == 2


def test_replay_wants_a_queue_or_ids_and_not_both(pgque: Pgque) -> None:
    assert pgque("dead-letters", "replay").exit_code == 2
    assert pgque("dead-letters", "replay", "orders", "--id", "1").exit_code == 2
    assert pgque("dead-letters", "replay", "--id", "1", "--limit", "1").exit_code == 2


@pytest.mark.usefixtures("two_dead_letters")
@pytest.mark.parametrize(
    ("filters", "replayed"),
    [
        (["--reason", "not JSON"], 2),
        (["--reason", "not%"], 2),
        (["--reason", "torn"], 0),
        (["--type", "default"], 2),
        (["--type", "other"], 0),
        (["--since", "1h"], 2),
        (["--since", "0s"], 0),
        (["--limit", "1"], 1),
    ],
)
def test_replay_sends_only_what_fits(pgque: Pgque, filters: list[str], replayed: int) -> None:
    result = pgque("dlq", "replay", "orders", *filters)

    assert result.output == f"dead letters replayed: {replayed}\n"


@pytest.mark.usefixtures("two_dead_letters")
def test_replay_into_a_closed_queue_is_refused(refused: Refused, client: Client) -> None:
    client.configure_queue("orders", disable_insert="true")

    assert "takes no events" in refused("dlq", "replay", "orders")

    assert len(client.dead_letters("orders")) == 2


@pytest.mark.usefixtures("two_dead_letters")
def test_unregister_keeps_dead_letters_if_asked_to(pgque: Pgque, client: Client) -> None:
    pgque("unregister", "orders", "billing", "--keep-dead-letters")

    assert len(client.dead_letters("orders")) == 2


@pytest.mark.usefixtures("two_dead_letters")
def test_purge_deletes_by_age(pgque: Pgque, client: Client) -> None:
    assert pgque("dead-letters", "purge", "orders").output == "dead letters purged: 0\n"
    assert len(client.dead_letters("orders")) == 2

    result = pgque("dead-letters", "purge", "orders", "--older-than", "0s")

    assert result.output == "dead letters purged: 2\n"
    assert client.dead_letters("orders") == []


@pytest.mark.parametrize("age", ["5", "-1d", "1w", "soon"])
def test_purge_refuses_what_is_no_age(pgque: Pgque, age: str) -> None:
    result = pgque("dead-letters", "purge", "orders", "--older-than", age)

    assert result.exit_code == 2
    assert "30d" in result.stderr


def test_one_is_shown_whole_and_all_are_exported(
    pgque: Pgque, refused: Refused, two_dead_letters: list[int]
) -> None:
    shown = pgque("dlq", "show", "orders", str(two_dead_letters[1])).output

    assert "x" * 200 in shown
    assert "billing" in shown
    exported = [json.loads(line) for line in pgque("dlq", "export", "orders").output.splitlines()]
    assert [letter["payload"] for letter in exported] == ["first", "x" * 200]
    assert "no dead letter 99" in refused("dlq", "show", "orders", "99")


@pytest.fixture
def open_batch(client: Client) -> tuple[int, list[int]]:
    """A batch that nobody works on, and the ids of its three events."""
    ids = client.send_batch("orders", ["a", "poison", "c"])
    client.force_next_tick("orders")
    client.ticker()
    batch_id = client.next_batch("orders", "billing")
    assert batch_id is not None
    return batch_id, ids


def test_add_takes_events_out_of_the_open_batch(
    pgque: Pgque, client: Client, open_batch: tuple[int, list[int]]
) -> None:
    batch_id, ids = open_batch

    added = pgque("dead-letters", "add", "orders", "billing", str(ids[1]), "--reason", "no id")
    rest = pgque("--json", "dlq", "add", "orders", "billing", str(ids[0]), str(ids[2]))

    assert added.output == (
        f"dead letters added: 1; batch {batch_id} is open, with other events: have it consumed\n"
    )
    assert json.loads(rest.output) == {"added": 2, "batch": batch_id, "empty": True}
    reasons = {letter.event_id: letter.reason for letter in client.dead_letters("orders")}
    assert reasons == {ids[0]: "set aside by hand", ids[1]: "no id", ids[2]: "set aside by hand"}
    batch = client.claim("orders", "billing", owner="next")
    assert batch is not None
    assert (batch.batch_id, batch.events()) == (batch_id, [])


def test_add_refuses_events_that_are_not_in_the_open_batch(
    refused: Refused, client: Client, open_batch: tuple[int, list[int]]
) -> None:
    batch_id, ids = open_batch

    error = refused("dead-letters", "add", "orders", "billing", str(ids[0]), "998", "999")

    assert f"batch {batch_id} has no event 998, 999" in error
    assert client.dead_letters("orders") == []


def test_add_refuses_while_somebody_works_on_the_batch(
    refused: Refused, client: Client, open_batch: tuple[int, list[int]]
) -> None:
    client.claim("orders", "billing", owner="run 7")

    assert '"run 7"' in refused("dead-letters", "add", "orders", "billing", str(open_batch[1][0]))


@pytest.mark.usefixtures("client")
def test_add_refuses_a_consumer_without_an_open_batch(refused: Refused) -> None:
    assert "billing on queue orders has no open batch" in refused(
        "dead-letters", "add", "orders", "billing", "1"
    )
    assert '"nobody" is not registered' in refused("dead-letters", "add", "orders", "nobody", "1")


def test_add_wants_the_name_of_a_part_if_several_have_a_batch_open(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    ids, batches = [], []
    for worker in ("1", "2"):
        client.run(register_subconsumer("orders", "billing", worker))
        ids.append(client.send("orders", "x"))
        client.force_next_tick("orders")
        client.ticker()
    for worker in ("1", "2"):
        limits = Limits(max_count=1)
        batch = claim_shared(
            client, "orders", "billing", worker, owner="me", ttl=TTL, limits=limits
        )
        assert batch is not None
        batch.release()
        batches.append(batch.batch_id)

    error = refused("dead-letters", "add", "orders", "billing", str(ids[1]))

    assert f"{batches[0]} (billing.1), {batches[1]} (billing.2)" in error
    added = pgque("dead-letters", "add", "orders", "billing.2", str(ids[1])).output
    assert f"batch {batches[1]} is open, with no other events" in added
