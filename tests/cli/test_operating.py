"""Commands of an operator: queues, consumers, positions, leases, status, completion."""

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from pgque_dagster.cli import main
from pgque_dagster.client import Client
from pgque_dagster.client.models import ConsumingAsset
from pgque_dagster.client.registrations import enter_deployment
from tests.cli.conftest import Pgque, Refused, last_words, started
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import PATIENCE_SECONDS


def setting(client: Client, queue: str = "orders") -> str:
    """The queue's longest time between two ticks."""
    with client.transaction() as connection:
        row = connection.execute(
            "select queue_ticker_max_lag::text from pgque.get_queue_info(%s)", [queue]
        ).fetchone()
    assert row is not None
    return str(row[0])


class TestQueues:
    def test_create_queue_says_whether_the_queue_is_new(self, pgque: Pgque) -> None:
        assert pgque("create-queue", "orders").output == "created queue orders\n"
        assert pgque("create-queue", "orders").output == "queue orders already exists\n"

    def test_settings_are_made_all_or_none(
        self, pgque: Pgque, refused: Refused, misused: Refused, client: Client
    ) -> None:
        before = setting(client)
        assert "ticker_max_lag" in refused("configure", "orders", "ticker_max_lag=soon")
        pgque("configure", "orders", "ticker_max_lag=9 seconds", "max_retries=2")
        assert setting(client) == "00:00:09"
        refused("configure", "orders", "ticker_max_lag=1 hour", "max_retries=few")
        assert setting(client) == "00:00:09"
        pgque("configure", "orders", "ticker_max_lag=")
        assert setting(client) == before
        assert "NAME=VALUE" in misused("configure", "orders", "max_retries")

    def test_a_queue_with_consumers_is_dropped_only_by_force(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        assert "--force" in refused("drop-queue", "orders")
        assert pgque("drop-queue", "orders", "--force").output == "dropped queue orders\n"
        assert client.queue_stats() == []

    def test_pause_and_resume_are_seen_in_the_list(self, pgque: Pgque, client: Client) -> None:
        for command, ticker in (("pause", "paused"), ("resume", "not paused")):
            said = pgque(command, "orders").output
            assert ("pgque resume orders" in said) == (command == "pause")
            (queue,) = json.loads(pgque("status", "--json").stdout)["queues"]
            assert queue["ticker"] == ticker

    def test_unknown_names_are_reported_in_one_line(self, refused: Refused, client: Client) -> None:
        commands = (
            *("drop-queue {}", "register {} billing", "unregister {} billing", "status {}"),
            *("assign {} billing laptop", "seek {} billing earliest", "send {} 1"),
            *("dead-letters list {}", "dead-letters replay {}", "dead-letters purge {}"),
        )
        for command in commands:
            line = refused(*command.format("nope").split())
            assert '"nope"' in line and "`pgque create-queue nope`" in line
        assert "1 to 57 bytes" in refused("create-queue", "q" * 58)
        line = refused("unregister", "orders", "nope")
        assert '"nope"' in line and "pgque.register_consumer('orders', 'nope')" in line

    def test_names_cannot_inject_terminal_escapes(self, pgque: Pgque) -> None:
        pgque("create-queue", "red\x1b[31m")
        output = pgque("status").output
        assert "\x1b" not in output
        assert r"red\x1b[31m" in output


class TestConsumers:
    def test_they_are_registered_and_unregistered(self, pgque: Pgque, client: Client) -> None:
        register = ("register", "orders", "stock")
        assert pgque(*register).output == "registered consumer stock on orders\n"
        assert "already" in pgque(*register).output
        assert pgque("unregister", "orders", "stock").exit_code == 0
        assert [consumer.name for consumer in client.consumers("orders")] == ["billing"]

    def test_one_that_would_lose_events_is_unregistered_only_with_yes(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        unregister = ("unregister", "orders", "billing")
        publish(client, ["a", "b", "c"])
        batch = claim(client, consumer="billing")
        (first, second, _) = (event.msg_id for event in batch.events())
        assert "3 unread events and has a batch in progress: " in refused(*unregister)
        assert batch.lease.owner in refused(*unregister)
        batch.dead_letter([first], reason="bad")
        batch.nack([second])
        batch.ack()
        assert "would lose 1 scheduled retries, 1 dead letters" in refused(*unregister)
        assert "1 scheduled retries. If" in refused(*unregister, "--keep-dead-letters")
        client.send("orders", "without a tick")
        with client.transaction() as db, db.transaction(force_rollback=True):
            db.execute("select pgque.send('orders', 'never')")
        assert "would lose 1 unread events, 1 scheduled" in refused(*unregister)
        assert "--yes" in refused(*unregister)
        assert [consumer.name for consumer in client.consumers("orders")] == ["billing"]
        assert pgque(*unregister, "--yes").exit_code == 0
        assert client.consumers("orders") == []

    def test_they_start_where_the_option_says(self, pgque: Pgque, client: Client) -> None:
        publish(client, ["a"])
        for position, events in (("earliest", 1), ("latest", 0), ("2001-01-01", 1), ("1", 1)):
            pgque("register", "orders", position, "--start-at", position)
            (info,) = (each for each in client.consumers("orders") if each.name == position)
            assert info.pending_events == events

    def test_seek_passes_over_events_only_with_yes(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        publish(client, ["a"])
        seek = ("seek", "orders", "billing")
        line = refused(*seek, "latest")
        assert "would skip 1 events" in line and "--yes" in line
        assert "1 events are skipped" in pgque(*seek, "latest", "--yes").output
        assert pgque(*seek, "earliest").output == (
            "consumer billing on orders stands at tick 1: 0 events are skipped, "
            "1 will be delivered again\n"
        )
        assert "not a position" in pgque(*seek, "soon").stderr
        assert "Ticks 1 to 2 are retained" in refused(*seek, "999")
        client.claim("orders", "billing", owner="me")
        assert "has batch" in refused(*seek, "earliest")

    def test_assign_moves_a_consumer_to_a_deployment(self, pgque: Pgque, client: Client) -> None:
        belongs = "consumer billing on orders belongs to deployment"
        assign = ("assign", "orders", "billing")
        assert pgque(*assign, "production").output == f"{belongs} production\n"
        assert pgque(*assign, "laptop").output == f"{belongs} laptop, moved from production\n"

    def test_assign_moves_a_consumer_to_an_asset(
        self, pgque: Pgque, client: Client, refused: Refused
    ) -> None:
        place = ("--location", "shop", "--asset", "sales/billing")
        told = pgque("assign", "orders", "billing", "", *place).output
        asset = ConsumingAsset(None, "shop", ("sales/billing",))
        assert told == f"consumer billing on orders belongs to {asset}\n"
        assert str(asset) == "location shop, asset sales/billing"
        assert not client.run(enter_deployment("orders", "billing", asset))
        assert "no deployment" in refused("assign", "orders", "billing", "")

    def test_a_live_lease_is_released_only_with_yes(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        assert "no lease" in refused("release", "orders", "billing")
        publish(client, ["a"])
        client.claim("orders", "billing", owner="worker 1")
        (lease,) = json.loads(pgque("status", "orders", "--json").stdout)["consumers"]
        assert (lease["owner"], lease["lease"]) == ("worker 1", "live")

        assert "worker 1" in refused("release", "orders", "billing")
        assert pgque("release", "orders", "billing", "--yes").exit_code == 0
        again = claim(client, consumer="billing")
        assert [event.payload for event in again.events()] == ["a"]


class TestStatus:
    def test_empty_lists_say_what_to_do(self, pgque: Pgque) -> None:
        output = pgque("status").output
        for words in ("pgque create-queue", "pgque register", "no dead letters"):
            assert words in output

    def test_it_shows_queues_consumers_and_dead_letters(self, pgque: Pgque, client: Client) -> None:
        ids = publish(client, ["{}"])
        batch = claim(client, consumer="billing")
        batch.dead_letter(ids, reason="no total")
        batch.ack()

        output = pgque("status").output

        assert [line.split()[:2] for line in output.splitlines()] == [
            *(["component", "status"], ["postgresql", "ok"], ["pgque", "ok"]),
            *(["scheduler", "none"], ["ticks", "ok"], ["queues", "ok"], []),
            *(["queue", "kind"], ["orders", "events"], []),
            *(["queue", "consumer"], ["orders", "billing"], []),
            *(["queue", "consumer"], ["orders", "billing"], []),
            ["no", "problems"],
        ]
        assert "no total" in output
        found = json.loads(pgque("status", "--json").stdout)
        assert set(found) == {"components", "queues", "consumers", "dead_letters", "problems"}
        assert (
            found["dead_letters"]
            == json.loads(pgque("status", "orders", "--json").stdout)["dead_letters"]
        )
        client.create_queue("empty")
        assert json.loads(pgque("status", "empty", "--json").stdout)["consumers"] == []
        assert found["consumers"][0]["open_batch"] is None

    def test_it_shows_problems(self, pgque: Pgque, client: Client) -> None:
        with client.transaction() as connection:
            connection.execute("update pgque.tick set tick_time = now() - interval '1 day'")
        (problem,) = json.loads(pgque("status", "orders", "--json").stdout)["problems"]
        assert (problem["problem"], problem["check"]) == ("critical", "ticker_running")
        assert "ticker_running" in pgque("status").output

    def test_events_without_a_tick_are_pending_and_their_age_is_the_lag(
        self, pgque: Pgque, client: Client
    ) -> None:
        def shown() -> tuple[int, float]:
            (consumer,) = json.loads(pgque("status", "--json").stdout)["consumers"]
            return consumer["pending"], consumer["lag"]

        with client.transaction() as db:
            db.execute("update pgque.tick_log set tick_time = tick_time - interval '1 hour'")
        assert shown() == (0, 0)
        client.send("orders", "no ticker runs")
        pending, lag = shown()
        assert (pending, lag < 600) == (1, True)
        with client.transaction() as db:
            db.execute("update pgque.event set ev_time = ev_time - interval '20 minutes'")
        assert 1200 <= shown()[1] < 1800

    def test_it_shows_a_reader_all_but_the_scheduler(
        self, client: Client, database_url: str
    ) -> None:
        reader = {"PGQUE_URL": f"{database_url}&options=-crole%3Dpgque_reader"}
        output = CliRunner().invoke(main, ["status"], env=reader).output
        assert "only to pgque_admin" in output
        assert "orders" in output


class TestShell:
    def test_a_full_disk_is_reported_in_one_line(self) -> None:
        for option in ("--help", "--version"):
            with Path("/dev/full").open("w") as full, started("", option, stdout=full) as process:
                assert last_words(process) == "pgque: [Errno 28] No space left on device\n"
                assert process.wait(PATIENCE_SECONDS) == 1

    def test_every_command_has_examples_and_json(self) -> None:
        for name in main.commands:
            result = CliRunner().invoke(main, [name, "--help"], env={"PGQUE_URL": "none"})
            assert result.exit_code == 0
            assert "Examples:" in result.output
            assert "--json" in result.output

    def test_json_may_stand_before_or_after_the_command(self, pgque: Pgque, client: Client) -> None:
        assert json.loads(pgque("--json", "health").stdout) == json.loads(
            pgque("health", "--json").stdout
        )

    def test_a_shell_completes_commands(self) -> None:
        words = {"_PGQUE_COMPLETE": "bash_complete", "COMP_WORDS": "pgque see", "COMP_CWORD": "1"}
        program = Path(sys.executable).with_name("pgque")
        done = subprocess.run([program], env={**os.environ, **words}, capture_output=True)
        assert b"seek" in done.stdout
