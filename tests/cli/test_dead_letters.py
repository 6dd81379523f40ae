"""`pgque dead-letters add`: takes single events out of an open batch."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from pgque_dagster.client import Client, Limits
from pgque_dagster.client.holder import Holder
from tests.cli.conftest import Pgque

Refused = Callable[..., str]
TTL = timedelta(minutes=1)


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
    rest = pgque("--json", "dead-letters", "add", "orders", "billing", str(ids[0]), str(ids[2]))

    assert added.output == (
        f"dead letters added: 1; batch {batch_id} is open, with other events: have it consumed\n"
    )
    told = {"queue": "orders", "consumer": "billing", "added": 2, "batch": batch_id, "empty": True}
    assert json.loads(rest.output) == told
    reasons = {letter.event_id: letter.reason for letter in client.dead_letters("orders")}
    assert reasons == {ids[0]: "set aside by hand", ids[1]: "no id", ids[2]: "set aside by hand"}
    batch = client.claim("orders", "billing", owner="next")
    assert batch is not None
    assert (batch.batch_id, batch.events()) == (batch_id, [])


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
        client.run(Holder("orders", "billing", worker).register_subconsumer())
        ids.append(client.send("orders", "x"))
        client.force_next_tick("orders")
        client.ticker()
    for worker in ("1", "2"):
        limits = Limits(max_count=1)
        batch = Holder("orders", "billing", worker).claim(
            client, owner="me", ttl=TTL, limits=limits
        )
        assert batch is not None
        batch.release()
        batches.append(batch.batch_id)

    error = refused("dead-letters", "add", "orders", "billing", str(ids[1]))

    assert f"{batches[0]} (billing.1), {batches[1]} (billing.2)" in error
    added = pgque("dead-letters", "add", "orders", "billing.2", str(ids[1])).output
    assert f"batch {batches[1]} is open, with no other events" in added
