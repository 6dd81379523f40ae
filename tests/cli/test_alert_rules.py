"""Each broken state makes the shipped alert rules fire, as Prometheus evaluates them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import NewDatabase
from tests.support.queues.events import claim, publish, tick

_RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
pytestmark = pytest.mark.program("prometheus")


def hold_a_batch(client: Client) -> None:
    publish(client, ["b"])
    batch = claim(client, consumer="billing")
    batch.release()
    run(client, "select pgque.hold_batch(%s, %s, 'failed')", batch.batch_id, batch.lease.epoch)


def give_up(client: Client) -> None:
    events = publish(client, ["bad"])
    batch = claim(client, consumer="billing")
    batch.dead_letter(events, reason="bad")
    batch.ack()


def run(client: Client, statement: str, *arguments: object) -> None:
    with client.transaction() as connection:
        connection.execute(statement.encode(), arguments)


def age_ticks(client: Client, age: str) -> None:
    run(client, "update pgque.tick_log set tick_time = tick_time - %s::interval", age)


def kill_the_ticker(client: Client) -> None:
    client.send("orders", "b")
    age_ticks(client, "30 minutes")


def lag(client: Client) -> None:
    publish(client, ["b"])
    age_ticks(client, "90 minutes")
    run(client, "update pgque.event set ev_time = ev_time - interval '90 minutes'")
    tick(client)


def hold_rotation(client: Client) -> None:
    run(client, "update pgque.queue set queue_switch_time = now() - interval '1 day'")


def record_replica(client: Client, problem: str | None, age: str = "0") -> None:
    tables = """[{"table_name": "public.t", "is_stored": true, "is_copied": true}]"""
    run(client, "select pgque.note_replicas('orders', 'billing', 1, %s::jsonb)", tables)
    note = "select pgque.note_verified('orders', 'billing', 'public.t', 1, 2, 1, %s, null)"
    run(client, note, problem)
    run(client, "update pgque.replica_status set verified_at = now() - %s::interval", age)


def lose_a_slot(client: Client) -> None:
    run(client, "insert into pgque.relay select queue_id, 'gone' from pgque.queue")


def hold_wal(client: Client) -> None:
    values = "values ('orders'::text, 'relay'::text, 'warning'::text, ''::text)"
    names = "queue_name, check_name, status, detail"
    run(client, f"create or replace view pgque.relay_health ({names}) as {values}")


STATES = {
    "healthy": (lambda client: None, set()),
    "ticker dead": (kill_the_ticker, {"PgqueTickerDead", "PgqueConsumerStands"}),
    "consumer stuck": (lambda client: publish(client, ["b"]), {"PgqueConsumerStands"}),
    "consumer behind": (lag, {"PgqueConsumerLags", "PgqueConsumerStands"}),
    "batch held": (hold_a_batch, {"PgqueCritical", "PgqueConsumerStands"}),
    "dead letters grow": (give_up, {"PgqueDeadLetters"}),
    "slot lost": (lose_a_slot, {"PgqueCritical"}),
    "slot holds much WAL": (hold_wal, {"PgqueRelayHoldsWal"}),
    "replica equal": (lambda client: record_replica(client, None), set()),
    "replica different": (
        lambda client: record_replica(client, "1 of 1 rows differ"),
        {"PgqueReplicaDiffers"},
    ),
    "replica not compared": (
        lambda client: record_replica(client, None, "2 days"),
        {"PgqueReplicaNotVerified"},
    ),
    "rotation held": (hold_rotation, {"PgqueCritical"}),
    "database unreachable": (None, {"PgqueUnreachable"}),
}


def test_a_broken_state_fires_its_alerts(new_database: NewDatabase, tmp_path: Path) -> None:
    """Prometheus scrapes a healthy queue for two hours, and then the state for four."""
    tests = []
    for state, (break_it, expected) in STATES.items():
        with new_database() as url, Client(url) as client:
            client.create_queue("orders")
            client.register_consumer("orders", "billing")
            publish(client, ["a"])
            claim(client, consumer="billing").ack()
            well = scraped(url)
            if break_it is not None:
                break_it(client)
            broken = "pgque_up 0\n" if break_it is None else scraped(url)
        # That alert looks at the last hour only.
        later = "2h30m" if break_it is give_up else "5h"
        tests.append(
            {
                "name": state,
                "interval": "5m",
                "input_series": list(series(well, broken)),
                "promql_expr_test": [fires("1h55m", set()), fires(later, expected)],
            }
        )
    rules = {"rule_files": [str(_RULES)], "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "test.yaml").write_text(json.dumps(rules))
    told = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


def scraped(url: str) -> str:
    return CliRunner().invoke(main, ["metrics", "--url", url]).stdout


def fires(at: str, names: set[str]) -> dict[str, object]:
    """A test of which alerts fire at a time."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {"expr": query, "eval_time": at, "exp_samples": samples}


def series(*scrapes: str) -> Iterator[dict[str, str]]:
    """The scrapes one after the other, the first for two hours and the second for four."""
    found: dict[str, list[str]] = {}
    rules = _RULES.read_text()
    for number, scrape in enumerate(scrapes):
        for family in text_string_to_metric_families(scrape):
            for sample in family.samples if family.name in rules else ():
                labels = ",".join(f"{key}={json.dumps(of)}" for key, of in sample.labels.items())
                values = found.setdefault(f"{sample.name}{{{labels}}}", ["_x24", "_x48"])
                values[number] = f"{sample.value}+0x{(23, 47)[number]}"
    for name, values in found.items():
        yield {"series": name, "values": " ".join(values)}
