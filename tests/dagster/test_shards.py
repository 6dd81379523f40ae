"""One queue over several databases: a run has a batch of each, stored once whatever happens."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from traceback import format_exception
from typing import Any

import dagster as dg
import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    PgqueResource,
    SparkBatch,
    build_consumer_lag_checks,
    build_pgque_schedule,
    build_queue_assets,
    pgque_asset,
)
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.sensors import shards
from tests.conftest import INSTALL_SQL, Server, new_database, new_server
from tests.dagster.support import StoringIOManager
from tests.support.dg_project import DgProject
from tests.support.events import make_queue, publish
from tests.support.sharding import POINTS, STORED, Sharded, payloads, shards_of, watched
from tests.support.signals import go_on, has_ended, state_of, wait_until

ROOT = Path(__file__).parents[2]


class Died(Exception):
    """Takes the place of a run's death."""


@pytest.fixture
def urls(
    server: Server, template_database: str, administration: psycopg.Connection
) -> Iterator[dict[str, str]]:
    """Three databases of one server, each with the queue orders and its consumer revenue."""
    with ExitStack() as stack:
        databases = {
            shard: stack.enter_context(new_database(server, template_database, administration))
            for shard in ("eu", "us", "asia")
        }
        for url in databases.values():
            with Client(url) as client:
                make_queue(client)
        yield databases


@pytest.fixture(params=["parquet", "delta"])
def sharded(
    request: pytest.FixtureRequest, urls: dict[str, str], tmp_path: Path, spark: SparkSession
) -> Sharded:
    """An asset over two of the databases."""
    two = {shard: urls[shard] for shard in ("eu", "us")}
    return Sharded(two, request.param, tmp_path / "lake", spark)


def send(sharded: Sharded, **numbers: list[Any]) -> None:
    """Publishes numbers in a batch of each of the shards."""
    for shard, each in numbers.items():
        with Client(sharded.urls[shard]) as client:
            publish(client, [{"number": number} for number in each])


def left(sharded: Sharded) -> list[str]:
    """The shards that have a batch to deliver."""
    found = []
    for shard, url in sharded.urls.items():
        with Client(url) as client:
            if client.next_batch("orders", "revenue") is not None:
                found.append(shard)
    return found


def dead_letters(sharded: Sharded, shard: str) -> int:
    with Client(sharded.urls[shard]) as client:
        return len(client.dead_letters("orders"))


def consume(sharded: Sharded, **options: Any) -> list[list[str]]:
    """Runs what the sensor requests until nothing is left; returns the shards of each run."""
    done = []
    while not isinstance(requests := sharded.evaluate(**options), str):
        for request in requests:
            done.append(shards_of(request))
            assert sharded.run(request.tags).success
    return done


def test_a_run_has_a_batch_of_each_shard_and_stores_them_by_one_commit(sharded: Sharded) -> None:
    send(sharded, eu=[1, 2], us=[1, 3])

    (request,) = sharded.requests()
    assert shards_of(request) == ["eu", "us"]
    done = sharded.run(request.tags)

    assert done.success
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1), ("us", 3)]
    assert left(sharded) == []
    (made,) = done.asset_materializations_for_node("revenue")
    assert made.metadata["pgque/events"].value == 4
    assert {
        shard: each["events"] for shard, each in made.metadata["pgque/shards"].value.items()
    } == {"eu": 2, "us": 2}
    assert list((sharded.folder / "revenue" / "_pgque" / "vectors").iterdir()) == []

    send(sharded, us=[4])
    assert consume(sharded) == [["us"]]
    assert sharded.rows()[2:] == [("us", 1), ("us", 3), ("us", 4)]


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_is_completed_and_nothing_is_stored_twice(
    sharded: Sharded, point: str
) -> None:
    send(sharded, eu=[1, "no number"], us=["no number", 2])
    (request,) = sharded.requests()

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with watched(die):
        assert not sharded.run(request.tags).success
    expected = ["us"] if point == POINTS[-1] else ["eu", "us"]
    assert left(sharded) == expected

    if point in STORED:
        # What is stored is not computed again.
        def fail(batch: SparkBatch) -> DataFrame:
            raise AssertionError

        sharded.compute = fail
    runs = consume(sharded)

    assert runs == [[shard] for shard in expected]
    assert sharded.rows() == [("eu", 1), ("us", 2)]
    assert (dead_letters(sharded, "eu"), dead_letters(sharded, "us")) == (1, 1)
    made = sharded.instance.fetch_materializations(dg.AssetKey("revenue"), limit=9).records
    assert made, "no run recorded what was stored"


def test_a_batch_that_fails_does_not_stop_those_of_other_shards(sharded: Sharded) -> None:
    def picky(batch: SparkBatch) -> DataFrame:
        frame = batch.payload("number bigint not null")
        if frame.where("number = 13").count():
            raise ValueError("13")
        return frame

    sharded.compute = picky
    send(sharded, eu=[1], us=[13])
    (request,) = sharded.requests(max_attempts=2)
    assert not sharded.run(request.tags).success

    for request in sharded.requests(max_attempts=2):
        assert sharded.run(request.tags).success == (shards_of(request) == ["eu"])

    assert sharded.rows() == [("eu", 1)]
    told = sharded.evaluate(max_attempts=2)
    assert isinstance(told, str)
    assert "shard us: " in told
    assert "parked after 2 attempts" in told
    send(sharded, eu=[2])
    (request,) = sharded.requests(max_attempts=2)
    assert sharded.run(request.tags).success
    assert sharded.rows() == [("eu", 1), ("eu", 2)]


def test_a_shard_is_added_and_removed(sharded: Sharded, urls: dict[str, str]) -> None:
    send(sharded, eu=[1], us=[1])
    consume(sharded)

    sharded.urls = dict(urls)
    send(sharded, asia=[1], us=[2])
    assert consume(sharded) == [["asia", "us"]]

    send(sharded, eu=[2], us=[3])
    sharded.urls = {"asia": urls["asia"], "us": urls["us"]}
    assert consume(sharded) == [["us"]]
    assert sharded.rows() == [("asia", 1), ("eu", 1), ("us", 1), ("us", 2), ("us", 3)]

    # Nothing of it is lost.
    sharded.urls = dict(urls)
    assert consume(sharded) == [["eu"]]
    assert ("eu", 2) in sharded.rows()


def test_two_runs_with_one_batch_in_common_store_it_once(sharded: Sharded) -> None:
    """The later one claims a batch of the earlier one, which publishes before it."""
    send(sharded, eu=[1], us=[1])
    (request,) = sharded.requests()
    inner: list[dg.ExecuteInProcessResult] = []
    overtaking = [POINTS[1]]

    def overtaken(point: str) -> None:
        # As after the lease has run out.
        if point in overtaking:
            overtaking.clear()
            for url in sharded.urls.values():
                with Client(url) as client:
                    release(client)
            inner.append(sharded.run(request.tags))

    with watched(overtaken):
        outer = sharded.run(request.tags)

    assert inner[0].success
    assert not outer.success
    assert sharded.rows() == [("eu", 1), ("us", 1)]
    assert left(sharded) == []


def release(client: Client) -> None:
    lease = client.lease_info("orders", "revenue")
    assert lease is not None
    with psycopg.connect(client.url, autocommit=True) as db:
        db.execute(
            "select pgque.release_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch)
        )


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP])
def test_a_process_that_is_killed_or_paused_stores_nothing_twice(
    sharded: Sharded, tmp_path: Path, signal: Signals, point: str
) -> None:
    send(sharded, eu=[1, 2], us=[3])
    (request,) = sharded.requests()

    with process(sharded, request, signal, point, tmp_path) as pid:
        wait_until(lambda: not is_leased(sharded))
        # With its shards alone, as the sensor requests them.
        for shard in left(sharded):
            tags = {key: value for key, value in request.tags.items() if key.endswith(shard)}
            assert sharded.run(tags).success
        go_on(pid, SIGCONT)
        wait_until(lambda: has_ended(pid))

    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 3)]
    assert left(sharded) == []


@contextmanager
def process(
    sharded: Sharded, request: dg.RunRequest, signal: Signals, point: str, folder: Path
) -> Iterator[int]:
    """A process with a run, which got the signal at the point; killed at the end."""
    given = [json.dumps(sharded.urls), sharded.kind, str(sharded.folder), json.dumps(request.tags)]
    command = [sys.executable, "-m", "tests.support.sharding", *given, signal.name, point]
    log = folder / "log"
    with log.open("wb") as stderr:
        started = subprocess.Popen(
            [*command, str(folder / "signalled")], cwd=ROOT, stderr=stderr, start_new_session=True
        )

    def got_its_signal() -> bool:
        ended_by_itself = started.poll() not in (None, -SIGKILL)
        assert not ended_by_itself, f"the run ended: {log.read_text()}"
        return state_of(started.pid) in "TZ"

    try:
        wait_until(got_its_signal)
        yield started.pid
    finally:
        go_on(started.pid, SIGKILL)
        started.wait()


def is_leased(sharded: Sharded) -> bool:
    found = []
    for url in sharded.urls.values():
        with Client(url) as client:
            lease = client.lease_info("orders", "revenue")
            found.append(lease is not None and lease.is_live)
    return any(found)


def test_a_server_that_is_down_is_left_out_and_named(
    urls: dict[str, str], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_AGAIN_SECONDS", 0.0)
    with new_server() as other:
        install(other.url)
        sharded = Sharded({"eu": urls["eu"], "us": other.url}, "delta", tmp_path / "lake", spark)
        with Client(other.url) as client:
            make_queue(client)
        send(sharded, eu=[1], us=[1])
        (request,) = sharded.requests()
        other.stop()

        assert sharded.run(request.tags).success, "the other shard goes on"
        assert sharded.rows() == [("eu", 1)]
        told = sharded.evaluate()
        assert isinstance(told, str)
        assert "shard us is left out: " in told
        assert checks(sharded) == {"eu": True, "us": False}

        other.start()
        assert consume(sharded) == [["us"]]
        assert sharded.rows() == [("eu", 1), ("us", 1)]
        assert checks(sharded) == {"eu": True, "us": True}


def checks(sharded: Sharded) -> dict[str, bool]:
    """The results of the checks on the lag, by shard."""
    found = build_consumer_lag_checks([sharded.asset], max_lag=timedelta(minutes=1))
    assets = [
        asset for shard in sharded.urls for asset in build_queue_assets("orders", database=shard)
    ]
    definitions = dg.Definitions(
        assets=assets,
        asset_checks=found,
        resources=sharded.resources,
        jobs=[dg.define_asset_job("lag", dg.AssetSelection.checks(*found))],
    )
    done = definitions.resolve_job_def("lag").execute_in_process(instance=sharded.instance)
    return {each.asset_key.path[0]: each.passed for each in done.get_asset_check_evaluations()}


def install(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTALL_SQL.read_bytes())


def test_a_shard_of_another_incarnation_is_left_out_until_somebody_decides(
    sharded: Sharded, urls: dict[str, str]
) -> None:
    send(sharded, eu=[1], us=[1])
    consume(sharded)

    # As a database that was restored is another incarnation.
    sharded.urls = {"eu": urls["eu"], "us": urls["asia"]}
    send(sharded, eu=[2], us=[2])
    (request,) = sharded.requests()
    assert sharded.run(request.tags).success

    assert left(sharded) == ["us"]
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1)]
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    told = str(failure.step_failure_data.error)
    assert "holds batches of shard us of incarnation" in told

    adopt(sharded)
    assert consume(sharded) == [["us"]]
    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 1), ("us", 2)]


def adopt(sharded: Sharded) -> None:
    with Client(sharded.urls["us"]) as client:
        own = str(client.incarnation())
    table = sharded.folder / "revenue"
    if sharded.kind == "delta":
        DeltaTable(table).alter.set_table_properties(
            {"pgque.lineage.us": own}, raise_if_not_exists=False
        )
        return
    newest = max(table.glob("vector-*/_shards.json"), key=lambda path: path.parent.name)
    incarnations, batches = json.loads(newest.read_text())
    newest.write_text(json.dumps([incarnations | {"us": own}, batches]))


def test_a_table_is_either_of_shards_or_of_one_database(sharded: Sharded) -> None:
    single = pgque_asset(queue="orders", database="eu", consumer="revenue", name="revenue")(
        payloads
    )

    def run_alone() -> str:
        done = dg.materialize([single], resources=sharded.resources, raise_on_error=False)
        return "".join(
            str(each.step_failure_data.error) for each in done.all_events if each.is_step_failure
        )

    send(sharded, eu=[1])
    assert consume(sharded)
    send(sharded, eu=[2])
    assert "over several databases" in run_alone() or "incarnation shards" in run_alone()

    sharded.folder = sharded.folder / "other"
    assert run_alone() == ""
    send(sharded, eu=[3], us=[3])
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    assert "was not created for a queue over several" in str(failure.step_failure_data.error)
    assert left(sharded) == ["eu", "us"]


def test_events_of_shards_are_nacked_and_dead_lettered_by_shard(sharded: Sharded) -> None:
    def fails(batch: SparkBatch) -> DataFrame:
        events = batch.events(["ev_id", "ev_data"])
        bad = events.where("ev_data like '%13%'")
        batch.dead_letter(bad, reason="13")
        with pytest.raises(InvalidArgument, match="the columns shard and ev_id"):
            batch.nack([1])
        batch.nack(events.where("ev_data like '%14%' and shard = 'us'"))
        return events.where("ev_data like '%1}%'").selectExpr("shard", "1 number")

    sharded.compute = fails
    send(sharded, eu=[1, 13, 14], us=[14, 1])
    (request,) = sharded.requests()
    done = sharded.run(request.tags)

    assert done.success
    assert sharded.rows() == [("eu", 1), ("us", 1)]
    assert (dead_letters(sharded, "eu"), dead_letters(sharded, "us")) == (1, 0)
    (made,) = done.asset_materializations_for_node("revenue")
    assert (made.metadata["pgque/nacked"].value, made.metadata["pgque/dead_lettered"].value) == (
        *(1, 1),
    )


def test_what_cannot_be_stored_by_one_commit_is_refused(sharded: Sharded) -> None:
    def none(batch: SparkBatch) -> None:
        """Stores nothing by a sink."""

    blocking = dg.AssetCheckSpec("positive", asset="revenue", blocking=True)
    hours = dg.HourlyPartitionsDefinition("2026-05-24-00:00")
    refused: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
        ("an IO manager stores the result", {}, none),
        ("no check can block its ack", {"check_specs": [blocking]}, payloads),
        ("leave out partitions, or databases", {"partitions": 4}, payloads),
        ("leave out database, or databases", {"database": "asia"}, payloads),
        ("databases is a text", {"databases": "eu"}, payloads),
        ("databases names one twice", {"databases": ["eu", "eu"]}, payloads),
        ("leave out databases", {"partitions_def": hours}, payloads),
    ]
    for told, options, compute in refused:
        given = {"queue": "orders", "databases": ["eu", "us"], "name": "revenue", **options}
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=told):
            pgque_asset(**given)(compute)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="more than 1"):
        sharded.evaluate(max_attempts=1)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="or for an asset with databases"):
        build_pgque_schedule([sharded.asset], cron_schedule="@daily")

    send(sharded, eu=[1])
    sharded.compute = lambda batch: dg.MaterializeResult()
    (request,) = sharded.requests()
    (failure,) = [x for x in sharded.run(request.tags).all_events if x.is_step_failure]
    assert "were not stored by the IO manager" in str(failure.step_failure_data.error)
    assert left(sharded) == ["eu"]

    resources = {**sharded.resources, "io_manager": StoringIOManager()}
    done = dg.materialize([sharded.asset], resources=resources, raise_on_error=False)
    (failure,) = [each for each in done.all_events if each.is_step_failure]
    assert "StoringIOManager does not store" in str(failure.step_failure_data.error)


TRANSFORM = """\
def numbers(orders):
    return orders.select("shard", "number")
"""


def test_shards_in_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urls: dict[str, str], spark: SparkSession
) -> None:
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    for shard in ("eu", "us"):
        attributes = f"attributes:\n  database: {shard}\n"
        project.write(
            f"{shard}_db",
            f"type: pgque_dagster.PgqueComponent\n{attributes}  url: '{urls[shard]}'\n",
        )
        project.write(
            f"{shard}_orders", f"type: pgque_dagster.QueueComponent\n{attributes}  queue: orders\n"
        )
    project.write(
        "revenue",
        "type: pgque_dagster.BatchConsumerComponent\nattributes:\n"
        "  queue: orders\n  databases: [eu, us]\n  consumer: revenue\n"
        "  transform: .transform.numbers\n  payload: {schema: number bigint}\n"
        f"  sink: {{type: delta, base_dir: '{tmp_path}/lake'}}\n"
        "  consumer_lag_checks: {max_lag: 1m}\n",
    )
    (project.defs / "revenue" / "transform.py").write_text(TRANSFORM)
    sharded = Sharded({shard: urls[shard] for shard in ("eu", "us")}, "delta", tmp_path, spark)
    send(sharded, eu=[1], us=[2])

    definitions = project.load()
    repository = definitions.get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} >= {"numbers_sensor"}
    instance = dg.DagsterInstance.ephemeral()
    resources = {name: PgqueResource(url=url) for name, url in sharded.urls.items()}
    context = dg.build_sensor_context(
        instance=instance, resources=resources, repository_def=repository
    )
    result: Any = repository.get_sensor_def("numbers_sensor")(context)
    (request,) = result.run_requests
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(
        asset_selection=request.asset_selection, instance=instance, tags=request.tags
    ).success

    stored = DeltaTable(tmp_path / "lake" / "numbers").to_pyarrow_table().to_pylist()
    assert sorted((row["shard"], row["number"]) for row in stored) == [("eu", 1), ("us", 2)]
    project.replace("revenue", f"type: delta, base_dir: '{tmp_path}/lake'", "type: postgres")
    with pytest.raises(Exception) as error:
        project.load()
    assert "a sink of type parquet or delta" in "".join(format_exception(error.value))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_any_sequence_of_faults_stores_each_event_once(
    sharded: Sharded,
    urls: dict[str, str],
    administration: psycopg.Connection,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs die at any point, databases refuse connections, shards come and go."""
    monkeypatch.setattr(shards, "_AGAIN_SECONDS", 0.0)
    choose = Random(seed)
    sent: list[tuple[str, int]] = []
    everything = dict(urls)
    closed: set[str] = set()
    for number in range(40):
        match choose.choice(("send", "send", "consume", "consume", "close", "shards")):
            case "send":
                if open_shards := sorted(set(everything) - closed):
                    shard = choose.choice(open_shards)
                    with Client(everything[shard]) as client:
                        publish(client, [{"number": number}])
                    sent.append((shard, number))
            case "close":
                shard = choose.choice(sorted(everything))
                closed ^= {shard}
                allow(administration, everything[shard], shard not in closed)
            case "shards":
                some = choose.sample(sorted(everything), choose.randint(1, len(everything)))
                sharded.urls = {shard: everything[shard] for shard in some}
            case "consume":
                die_at = choose.choice((None, *POINTS))

                def die(reached: str, die_at: str | None = die_at) -> None:
                    if reached == die_at:
                        raise Died

                found = sharded.evaluate(max_attempts=1000)
                for request in [] if isinstance(found, str) else found:
                    with watched(die):
                        sharded.run(request.tags)
    for shard in closed:
        allow(administration, everything[shard], True)
    sharded.urls = everything
    consume(sharded, max_attempts=1000)

    assert sharded.rows() == sorted(sent)


def allow(administration: psycopg.Connection, url: str, is_allowed: bool) -> None:
    """Lets a database take connections, or ends them and refuses more."""
    name = conninfo_to_dict(url)["dbname"]
    administration.execute(f"alter database {name} allow_connections {is_allowed}".encode())
    if not is_allowed:
        administration.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,)
        )
