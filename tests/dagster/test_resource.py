"""`PgqueResource`: one place for the database, and no password anywhere."""

import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress

import dagster as dg
import psycopg
import pytest

from pgque_dagster import (
    Alert,
    DeltaReplicas,
    PgqueResource,
    build_pgque_alerts,
    build_pgque_observation_sensor,
    build_pgque_ticker_sensor,
    build_table_replicas,
    installer,
)
from pgque_dagster.client import (
    Client,
    ConnectionFailed,
    NewerInstalled,
    OlderInstalled,
    SchemaMissing,
)
from pgque_dagster.client.queues import queue_names
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import empty_database

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


def test_declared_queues_exist_with_their_options_and_again_change_nothing(
    empty_url: str,
) -> None:
    for install in ("if_missing", "upgrade"):
        resource = PgqueResource(
            url=empty_url,
            queues=["plain"],
            queue_options={"orders": {"ticker_max_lag": "7 seconds", "max_retries": 9}},
            install=install,
        )
        with resource.client() as client:
            assert set(client.run(queue_names())) == {"plain", "orders"}
    with psycopg.connect(empty_url) as db:
        found = db.execute(
            "select queue_ticker_max_lag::text, queue_max_retries from pgque.queue "
            "where queue_name = 'orders'"
        ).fetchone()
    assert found == ("00:00:07", 9)


def test_what_is_not_installed_or_not_declared_is_an_error_that_names_it(
    empty_url: str,
) -> None:
    never = PgqueResource(url=empty_url, install="never", queues=["orders"])
    with pytest.raises(SchemaMissing, match="pgque install"), never.client():
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
        assert client.run(queue_names()) == ["orders"]
    assert installer.installed_version(database_url) != "0.1.0"


def test_a_client_leaves_no_connection_behind(database_url: str) -> None:
    for _ in range(3):
        with PgqueResource(url=database_url).client() as client:
            client.version()
    # A closed connection is listed until its process has ended.
    wait_until(lambda: connections(database_url) == 0)


def test_a_database_that_does_not_answer_holds_up_no_other(database_url: str) -> None:
    def wait(port: int) -> None:
        with suppress(ConnectionFailed):
            url = f"postgresql://me@127.0.0.1:{port}/db?connect_timeout=120"
            PgqueResource(url=url).database_url()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = threading.Thread(target=wait, args=(silent.getsockname()[1],))
        waiting.start()
        connection, _ = silent.accept()
        with connection:
            PgqueResource(url=database_url).database_url()
            assert waiting.is_alive()
    waiting.join()


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
def test_no_error_and_no_log_tells_the_password(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    resource = PgqueResource(url=url)

    @dg.asset
    def asset(pgque: PgqueResource) -> None:
        with pgque.client():
            pass

    with pytest.raises(ConnectionFailed) as failure, resource.client():
        pass
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"pgque": resource}
        run = dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)
        logs = "".join(record.to_json() for record in instance.all_logs(run.run_id))

    assert "\n" not in str(failure.value)
    assert "ConnectionFailed" in logs
    assert SECRET not in logs + str(run.dagster_run) + "".join(capfd.readouterr())

    # Includes its causes and contexts, because Dagster logs these, too.
    assert SECRET not in "".join(traceback.format_exception(failure.value))
    assert SECRET not in repr(failure.value.__context__)
    assert SECRET not in repr(resource)


def test_the_ticker_sensor_ticks_and_maintains_only_where_the_policy_says_so(
    database_url: str,
) -> None:
    def evaluate(resource: PgqueResource) -> str:
        skipped = build_pgque_ticker_sensor()(dg.build_sensor_context(), pgque=resource)
        return str(skipped.skip_message)

    resource = PgqueResource(url=database_url, ticking="sensor", queues=["orders"])
    with resource.client() as client:
        client.configure_queue("orders", ticker_max_lag="0")
        client.register_consumer("orders", "revenue")
        client.send("orders", "a")
        assert client.next_batch("orders", "revenue") is None

        assert "ticking is external" in evaluate(PgqueResource(url=database_url))
        assert "queues ticked: 1" in evaluate(resource)
        assert client.next_batch("orders", "revenue") is not None
    away = PgqueResource(url="postgresql://nobody@127.0.0.1:1/none", ticking="sensor")
    assert "Check that the server runs" in evaluate(away)


def test_a_variable_that_is_not_set_is_named_by_each_sensor_and_read_when_it_is_set(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pgque, alerts = PgqueResource(url=dg.EnvVar("PGQUE_ELSEWHERE"), ticking="sensor"), list[Alert]()
    own = [
        build_pgque_ticker_sensor(),
        build_pgque_observation_sensor(["orders"]),
        build_pgque_alerts(["orders"], notify=alerts.append),
    ]
    repository = dg.Definitions.merge(
        build_table_replicas("shop", ["public.orders"], target=DeltaReplicas("lake")),
        dg.Definitions(sensors=own, resources={"pgque": pgque, "pyspark": None}),
    ).get_repository_def()

    def evaluate(sensor: dg.SensorDefinition) -> str:
        context = dg.build_sensor_context(
            instance=dg.DagsterInstance.ephemeral(),
            repository_def=repository,
            resources={"pgque": pgque},
        )
        return str(sensor.evaluate_tick(context).skip_message)

    told = {each.name: evaluate(each) for each in repository.sensor_defs}
    told["pgque_alerts"] = alerts[0].detail
    assert len(told) == 7
    assert [
        each for each in told.values() if "variable PGQUE_ELSEWHERE is empty or not set" not in each
    ] == []

    monkeypatch.setenv("PGQUE_ELSEWHERE", database_url)
    assert "queues ticked" in evaluate(own[0])
    for name in ("shop_sensor", "shop_watch", "shop_verify_sensor"):
        assert "the sensor shop_capture creates it" in evaluate(repository.get_sensor_def(name))
