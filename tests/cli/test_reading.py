"""`pgque peek`: events without a consumer; `pgque dead-letters`."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client, Limits
from pgque_dagster.client.holder import Holder
from pgque_dagster.client.registrations import subscribe_slots
from tests.cli.conftest import Pgque, Refused
from tests.support.queues.events import claim, tick
from tests.support.servers.logins import as_login
from tests.support.servers.standbys import synchronous_pair


def publish(client: Client, *payloads: str) -> None:
    client.send_batch("orders", list(payloads))
    tick(client)


def payloads(result: Result) -> list[str]:
    return [event["payload"] for event in json.loads(result.stdout)]


def standing(client: Client) -> tuple[int, int | None]:
    """Returns how many events are pending, and the open batch."""
    (consumer,) = client.consumers("orders")
    return consumer.pending_events or 0, consumer.batch_id


class TestPeek:
    def test_it_shows_the_newest_events_or_begins_at_a_position(
        self, pgque: Pgque, client: Client
    ) -> None:
        assert "retains no events" in pgque("peek", "orders").output
        publish(client, "a", "b")
        publish(client, "c", "d")
        peek = ("peek", "orders", "--json", "--limit", "3")
        assert payloads(pgque(*peek)) == ["b", "c", "d"]
        assert payloads(pgque("peek", "orders", "--limit", "9", "--json")) == ["a", "b", "c", "d"]
        for position, shown in (
            ("earliest", ["a", "b", "c"]),
            ("2", ["c", "d"]),
            ("2001-01-01", ["a", "b", "c"]),
            ("latest", []),
        ):
            assert payloads(pgque(*peek, "--from", position)) == shown
        assert standing(client) == (4, None)

    def test_it_shows_the_newest_events_behind_ids_that_were_rolled_back(
        self, pgque: Pgque, client: Client
    ) -> None:
        publish(client, "a", "b")
        for count in (50, 3000):
            with pytest.raises(ZeroDivisionError), client.transaction():
                client.send_batch("orders", [{}] * count)
                raise ZeroDivisionError
            publish(client)
            assert payloads(pgque("peek", "orders", "--limit", "1", "--json")) == ["b"]
            assert payloads(pgque("peek", "orders", "--json")) == ["a", "b"]

    def test_it_shows_a_consumers_batch_with_what_is_delivered_again(
        self, pgque: Pgque, refused: Refused, misused: Refused, client: Client
    ) -> None:
        client.register_consumer("orders", "other")
        peek = ("peek", "orders", "--json", "--consumer", "billing")
        publish(client, "a", "b", "c")
        batch = claim(client, consumer="billing")
        batch.dead_letter([event.msg_id for event in batch.events()][:2], reason="bad")
        batch.ack()
        assert payloads(pgque(*peek)) == []
        client.replay_dead_letters("orders")
        publish(client, "d")
        assert payloads(pgque("peek", "orders", "--json")) == ["a", "b", "c", "d"]
        for _ in ("next", "open"):
            assert payloads(pgque(*peek)) == ["a", "b", "d"]
            assert payloads(pgque(*peek, "--limit", "2")) == ["a", "b"]
            client.next_batch("orders", "billing")
        assert payloads(pgque(*peek[:-1], "other")) == ["a", "b", "c", "d"]
        assert '"nobody"' in refused(*peek[:-1], "nobody")
        assert "not both" in misused(*peek, "--from", "earliest")

    def test_it_shows_the_keys_of_a_slot_alone(self, pgque: Pgque, client: Client) -> None:
        client.run(subscribe_slots("orders", "keyed", 2))
        for payload, key in (("a", "k1"), ("b", "k3"), ("c", "k2")):
            client.send("orders", payload, partition_key=key)
        publish(client)
        for slot, shown in (("0", ["a", "c"]), ("1", ["b"])):
            peek = ("peek", "orders", "--json", "--consumer", f"keyed#{slot}/2")
            assert payloads(pgque(*peek)) == shown
            claim(client, consumer=f"keyed#{slot}/2")
            assert payloads(pgque(*peek)) == shown

    def test_what_is_not_there_is_refused(self, refused: Refused, client: Client) -> None:
        assert "Did you mean orders?" in refused("peek", "order")
        assert "tick" in refused("peek", "orders", "--from", "99")

    def test_it_works_on_a_standby_and_in_a_read_only_session(self, pgque: Pgque) -> None:
        read_only = {"PGOPTIONS": "-c default_transaction_read_only=on"}
        peek = ("peek", "orders", "--json", "--from", "earliest", "--url")
        with synchronous_pair() as (primary, standby):
            with Client(primary.url) as client:
                client.create_queue("orders")
                publish(client, "a")
            for url, env in ((standby.url, {}), (primary.url, read_only)):
                result = CliRunner().invoke(main, [*peek, url], env=env)
                assert (result.stderr, payloads(result)) == ("", ["a"])
                sent = CliRunner().invoke(main, ["send", "orders", "{}", "--url", url], env=env)
                assert "target_session_attrs=read-write" in sent.stderr
                assert "default_transaction_read_only off" in sent.stderr

    def test_a_role_that_may_not_read_is_refused(self, database_url: str, client: Client) -> None:
        url = as_login(database_url, "pgque_writer")
        result = CliRunner().invoke(main, ["peek", "orders", "--url", url])
        assert (result.exit_code, "grant pgque_reader" in result.stderr) == (1, True)

    def test_payloads_cannot_inject_terminal_escapes(self, pgque: Pgque, client: Client) -> None:
        publish(client, "red\x1b[31m\nnext")
        assert r"red\x1b[31m\nnext" in pgque("peek", "orders").output

    def test_long_payloads_are_cut_for_the_table_only(self, pgque: Pgque, client: Client) -> None:
        publish(client, "x" * 500)
        assert "..." in pgque("peek", "orders").output
        assert payloads(pgque("peek", "orders", "--json")) == ["x" * 500]


class TestDeadLetters:
    @pytest.fixture(autouse=True)
    def two(self, client: Client) -> list[int]:
        """Two events that the consumer gave up; their ids as dead letters."""
        publish(client, "first", "x" * 200)
        batch = claim(client, consumer="billing")
        batch.dead_letter([event.msg_id for event in batch.events()], reason="not JSON")
        batch.ack()
        return sorted(letter.id for letter in client.dead_letters("orders"))

    def left(self, client: Client) -> int:
        return len(client.dead_letters("orders"))

    def test_they_are_listed_and_shown(
        self, pgque: Pgque, refused: Refused, two: list[int]
    ) -> None:
        short = pgque("dead-letters", "list", "orders").output
        assert "first" in short and "not JSON" in short
        assert "x" * 61 not in short
        assert len(pgque("dead-letters", "list", "orders", "--limit", "1").output.splitlines()) == 2
        shown = pgque("dead-letters", "show", "orders", str(two[1])).output
        assert "x" * 200 in shown and "billing" in shown
        assert "no dead letter 99" in refused("dead-letters", "show", "orders", "99")

    @pytest.mark.parametrize(
        ("filters", "replayed"), [([], 2), (["--reason", "not%"], 2), (["--reason", "torn"], 0)]
    )
    def test_those_that_fit_are_replayed(
        self, pgque: Pgque, client: Client, filters: list[str], replayed: int
    ) -> None:
        result = pgque("dead-letters", "replay", "orders", *filters)
        assert result.output == f"dead letters replayed: {replayed}\n"
        assert self.left(client) == 2 - replayed

    def test_those_of_an_id_are_replayed_or_none(
        self, pgque: Pgque, refused: Refused, misused: Refused, client: Client, two: list[int]
    ) -> None:
        assert "999" in refused("dead-letters", "replay", "--id", str(two[0]), "--id=999")
        for both in ([], ["orders", "--id", "1"], ["--id", "1", "--reason", "x"]):
            misused("dead-letters", "replay", *both)
        assert self.left(client) == 2
        pgque("dead-letters", "replay", "--id", str(two[0]))
        assert [letter.id for letter in client.dead_letters("orders")] == [two[1]]

    def test_they_stay_if_the_queue_is_closed_or_the_option_keeps_them(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        client.configure_queue("orders", disable_insert="true")
        assert "takes no events" in refused("dead-letters", "replay", "orders")
        pgque("unregister", "orders", "billing", "--keep-dead-letters", "--yes")
        assert self.left(client) == 2

    def test_they_are_purged_by_age(
        self, pgque: Pgque, refused: Refused, misused: Refused, client: Client
    ) -> None:
        for age in ("5", "-1d", "1w", "soon"):
            assert "30d" in misused("dead-letters", "purge", "orders", "--older-than", age)
        assert pgque("dead-letters", "purge", "orders").output == "dead letters purged: 0\n"
        assert self.left(client) == 2
        all_of_them = ("dead-letters", "purge", "orders", "--older-than", "0s")
        assert "2 dead letters of orders would be deleted" in refused(*all_of_them)
        assert self.left(client) == 2
        purged = pgque(*all_of_them, "--yes")
        assert purged.output == "dead letters purged: 2\n"
        assert self.left(client) == 0


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
