"""`PgqueResource`: one place for the database, and no password anywhere."""

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from pgque_dagster import PgqueResource, installer
from pgque_dagster.client import (
    Client,
    ConnectionFailed,
    NewerInstalled,
    OlderInstalled,
    QueueNotFound,
    SchedulerMissing,
)
from pgque_dagster.client.pool import ClientPool
from pgque_dagster.sensors.ticker_sensor import build_pgque_ticker_sensor
from tests.support.databases import empty_database

SECRET = "s3cr3t-Pa55"


@pytest.fixture
def empty_url(server: object) -> Iterator[str]:
    with empty_database(server) as url:
        yield url


def set_version(url: str, version: str) -> None:
    """Makes the schema report another version."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "create or replace function pgque.version() returns text language sql "
            f"as $$ select '{version}' $$".encode()
        )


def connections(url: str) -> int:
    with psycopg.connect(url) as db:
        row = db.execute(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"  # autovacuum may visit the database
        ).fetchone()
    return int(row[0]) if row else 0


def test_declared_queues_and_consumers_exist_with_their_options_and_again_change_nothing(
    empty_url: str,
) -> None:
    for size in (1, 2):
        resource = PgqueResource(
            url=empty_url,
            queues=["plain"],
            queue_options={"orders": {"ticker_max_lag": "7 seconds", "max_retries": 9}},
            consumers={"orders": ["revenue", "stock"]},
            pool_size=size,
        )
        with resource.client() as client:
            assert {queue.name for queue in client.queues()} == {"plain", "orders"}
            assert [c.name for c in client.consumers("orders")] == ["revenue", "stock"]
    with psycopg.connect(empty_url) as db:
        found = db.execute(
            "select queue_ticker_max_lag::text, queue_max_retries from pgque.queue "
            "where queue_name = 'orders'"
        ).fetchone()
    assert found == ("00:00:07", 9)


def test_a_consumer_of_a_queue_that_nobody_declared_is_an_error_that_names_it(
    empty_url: str,
) -> None:
    resource = PgqueResource(url=empty_url, consumers={"odrers": ["revenue"]})

    with pytest.raises(QueueNotFound, match="odrers"), resource.client():
        pass


def test_an_older_schema_is_an_error_that_says_how_to_upgrade(database_url: str) -> None:
    set_version(database_url, "0.1.0")

    with pytest.raises(OlderInstalled, match=r"pgque 0\.1\.0, which is older.*install='upgrade'"):
        PgqueResource(url=database_url).database_url()


def test_a_newer_schema_is_an_error_that_says_what_to_install(database_url: str) -> None:
    set_version(database_url, "99.0.0")

    for policy in ("never", "if_missing", "upgrade"):
        with pytest.raises(NewerInstalled, match=r"pgque-dagster 99\.0\.0 or newer"):
            PgqueResource(url=database_url, install=policy).database_url()  # type: ignore[arg-type]


def test_an_older_schema_is_upgraded_where_that_is_allowed(database_url: str) -> None:
    with Client(database_url) as client:
        client.create_queue("orders")
    set_version(database_url, "0.1.0")

    with PgqueResource(url=database_url, install="upgrade").client() as client:
        assert [queue.name for queue in client.queues()] == ["orders"]
    assert installer.installed_version(database_url) != "0.1.0"


def test_pg_cron_that_is_missing_is_told_when_the_policy_asks_for_it(database_url: str) -> None:
    resource = PgqueResource(url=database_url, ticking="pg_cron")

    with pytest.raises(SchedulerMissing):
        resource.database_url()


def test_it_works_in_assets_ops_checks_schedules_and_sensors(database_url: str) -> None:
    seen: list[str] = []
    resources = {"pgque": PgqueResource(url=database_url, queues=["orders"])}

    def look(pgque: PgqueResource, where: str) -> None:
        with pgque.client() as client:
            assert [queue.name for queue in client.queues()] == ["orders"]
        seen.append(where)

    @dg.asset
    def asset(pgque: PgqueResource) -> None:
        look(pgque, "asset")

    @dg.asset_check(asset=asset)
    def check(pgque: PgqueResource) -> dg.AssetCheckResult:
        look(pgque, "check")
        return dg.AssetCheckResult(passed=all(x.status != "critical" for x in pgque.health()))

    @dg.op
    def op(pgque: PgqueResource) -> None:
        look(pgque, "op")

    @dg.job(resource_defs=resources)
    def job() -> None:
        op()

    @dg.schedule(job=job, cron_schedule="* * * * *")
    def schedule(pgque: PgqueResource) -> dg.SkipReason:
        look(pgque, "schedule")
        return dg.SkipReason("seen")

    @dg.sensor(job=job)
    def sensor(pgque: PgqueResource) -> dg.SkipReason:
        look(pgque, "sensor")
        return dg.SkipReason("seen")

    assert dg.materialize([asset, check], resources=resources).success
    assert job.execute_in_process().success
    schedule(dg.build_schedule_context(resources=resources))
    sensor(dg.build_sensor_context(resources=resources))

    assert seen == ["asset", "check", "op", "schedule", "sensor"]


def test_one_connection_serves_one_use_after_another(database_url: str) -> None:
    for _ in range(3):
        with PgqueResource(url=database_url).client() as client:
            client.version()

    assert connections(database_url) == 1


def test_a_pool_keeps_no_more_idle_connections_than_it_is_told(database_url: str) -> None:
    pool = ClientPool(database_url, max_idle=1)
    with pool.client() as first, pool.client() as second:
        assert first.version() == second.version()

    assert connections(database_url) == 1
    pool.close()
    assert connections(database_url) == 0


def test_settings_of_one_use_do_not_reach_the_next(database_url: str) -> None:
    pool = ClientPool(database_url, max_idle=1)
    with pool.client() as client, client.transaction() as connection:
        connection.execute("set statement_timeout = '1s'")
    with pool.client() as client, client.transaction() as connection:
        row = connection.execute("show statement_timeout").fetchone()

    assert row == ("0",)
    pool.close()


def test_a_misspelt_setting_is_refused_without_its_value() -> None:
    with pytest.raises(ValueError, match="ulr") as failure:
        PgqueResource(ulr=f"postgresql://me:{SECRET}@h/db")  # type: ignore[call-arg]

    assert SECRET not in str(failure.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/none",
        f"host=127.0.0.1 port=1 user=me password={SECRET}",
        f"postgresql://me:{SECRET}@@127.0.0.1:1/none",
        f"postgresql//me:{SECRET}@127.0.0.1/none",
        f"postgresql://me:{SECRET}%zz@127.0.0.1:1/none",
    ],
)
def test_no_error_tells_the_password(url: str) -> None:
    resource = PgqueResource(url=url)

    with pytest.raises(ConnectionFailed) as failure, resource.client():
        pass

    # Includes its causes and contexts, because Dagster logs these, too.
    assert SECRET not in "".join(traceback.format_exception(failure.value))
    assert SECRET not in repr(failure.value.__context__)
    assert SECRET not in repr(resource)


def test_a_failed_run_logs_the_password_nowhere(
    tmp_path: Path,
) -> None:
    """The run executes in its own process, and the test searches all of its output."""
    script = tmp_path / "shop.py"
    script.write_text(
        "import dagster as dg\n"
        "from pgque_dagster import PgqueResource\n"
        "@dg.asset\n"
        "def asset(pgque: PgqueResource):\n"
        "    with pgque.client():\n"
        "        pass\n"
        'resources = {"pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL"))}\n'
        "with dg.DagsterInstance.ephemeral() as instance:\n"
        "    run = dg.materialize([asset], resources=resources, instance=instance,\n"
        "        raise_on_error=False)\n"
        "    for record in instance.all_logs(run.run_id):\n"
        "        print(record.to_json())\n"
        "    print(run.dagster_run)\n"
    )

    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PGQUE_URL": f"postgresql://me:{SECRET}@127.0.0.1:1/none"},
        capture_output=True,
        text=True,
    )

    assert "Check that the server runs" in ended.stdout + ended.stderr
    assert SECRET not in ended.stdout + ended.stderr


def test_the_ticker_sensor_ticks_and_maintains_where_the_policy_says_so(database_url: str) -> None:
    resource = PgqueResource(url=database_url, ticking="sensor", queues=["orders"])
    with resource.client() as client:
        client.configure_queue("orders", ticker_max_lag="0")
        client.register_consumer("orders", "revenue")
        client.send("orders", "a")
        assert client.next_batch("orders", "revenue") is None

        skipped = build_pgque_ticker_sensor()(dg.build_sensor_context(), pgque=resource)

        assert "queues ticked: 1" in str(skipped.skip_message)
        assert client.next_batch("orders", "revenue") is not None


def test_the_ticker_sensor_leaves_ticking_to_others_by_default(database_url: str) -> None:
    resource = PgqueResource(url=database_url, queues=["orders"])

    skipped = build_pgque_ticker_sensor()(dg.build_sensor_context(), pgque=resource)

    assert "ticking is external" in str(skipped.skip_message)


def test_the_ticker_sensor_goes_on_when_the_database_is_away() -> None:
    resource = PgqueResource(url="postgresql://nobody@127.0.0.1:1/none", ticking="sensor")

    skipped = build_pgque_ticker_sensor()(dg.build_sensor_context(), pgque=resource)

    assert "Check that the server runs" in str(skipped.skip_message)
