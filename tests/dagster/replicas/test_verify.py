"""The last comparison of a replica stays visible, and comparisons come by themselves."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import DeltaReplicas, PostgresReplicas, build_table_replicas
from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.capture import copy_again
from tests.dagster.replicas.shop import Shop
from tests.dagster.replicas.watched import KEY, Sensor, Watched, shown, sql, status
from tests.support.queues.sql import connect
from tests.support.runner.calls import at_call


@pytest.fixture
def options() -> dict[str, Any]:
    """Those of the replicas; tests may have others."""
    return {}


@pytest.fixture
def shop(
    database_url: str, spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> Iterator[Shop]:
    """A project that has copied one table of one row."""
    with connect(database_url) as db:
        db.execute("create table orders (id int primary key, total int)")
        db.execute("insert into orders values (1, 9)")
    options = {"target": PostgresReplicas(schema="copies"), **options}
    target = options["target"]
    if isinstance(target, DeltaReplicas):
        options["target"] = DeltaReplicas(str(tmp_path))
    made = Watched(database_url, spark, tmp_path, ["public.orders"], **options)
    made.capture()
    assert made.run().success
    yield made


def metadata(shop: Shop) -> dict[str, Any]:
    event = shop.instance.get_latest_materialization_event(KEY.asset_key)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: each.value for name, each in event.asset_materialization.metadata.items()}


def copy(shop: Shop) -> None:
    """Has the table copied again."""
    with Client(shop.url) as client:
        copy_again(client, "shop", "shop", "public.orders")
    assert shop.run().success


def of_one_part(shop: Shop) -> Any:
    """The configuration of a run of the schedule."""
    schedule = shop.repository.get_schedule_def("shop_verify_schedule")
    # A schedule opens its own instance.
    with dg.build_schedule_context(dg.DagsterInstance.local_temp(str(shop.folder))) as context:
        (request,) = schedule.evaluate_tick(context).run_requests or ()
    return request.run_config


def age(shop: Shop, minutes: int) -> None:
    """Lets time pass since the last batch and the last comparison."""
    sql(
        shop,
        "update pgque.replica_status set tried_at = tried_at - interval '1 min' * %(n)s,"
        " stored_at = stored_at - interval '1 min' * %(n)s,"
        " verified_at = verified_at - interval '1 min' * %(n)s".replace("%(n)s", str(minutes)),
    )


def test_a_difference_stays_red_in_each_batch_until_a_comparison_is_equal(shop: Shop) -> None:
    assert shown(shop)[:2] == ("orange", "of this run")
    assert "Never compared with its table" in shown(shop)[2]
    assert all(each.passed for each in shop.verify())
    sql(shop, "insert into orders values (2, 2)")
    shop.run()
    word, whose, told = shown(shop)
    assert (word, whose) == ("green", "of this run")
    assert f"Equal at tick {status(shop).verified_tick}, " in told
    assert "1 batches since" in told
    assert metadata(shop)["pgque/verified"].startswith("equal at tick ")
    assert metadata(shop)["pgque/batches_since_verified"] == 1
    assert metadata(shop)["dagster/row_count"] == 2

    sql(shop, "update copies.orders set total = 0 where id = 1")
    (failed,) = [each for each in shop.verify() if not each.passed]
    assert "1 of 2 rows differ: different {'id': 1}" in str(failed.description)
    assert "examples" not in failed.metadata, "values are shown only if somebody asks for them"
    shows = {"ops": {"shop__public__orders_equals_source": {"config": {"show_rows": True}}}}
    ((example,),) = [each.metadata["examples"].records for each in shop.verify(shows)]
    assert ("9" in str(example.data["table"]), "0" in str(example.data["replica"])) == (True, True)
    # It mends the row, and nobody has seen that yet.
    sql(shop, "update orders set total = 3 where id = 1")
    shop.run()
    word, whose, told = shown(shop)
    assert (word, whose) == ("red", "of this run")
    assert "different {'id': 1}" in told
    assert "The job shop_repair writes the rows that differ" in told

    assert all(each.passed for each in shop.verify())
    sql(shop, "delete from orders where id = 2")
    shop.run()
    assert shown(shop)[0] == "green"
    assert metadata(shop)["dagster/row_count"] == 1


def test_what_is_found_while_a_batch_is_stored_is_what_the_page_shows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch evaluates the check after the comparison was launched, and before it ends."""
    from pgque_dagster.client.replicas.postgres import verify as postgres

    assert all(each.passed for each in shop.verify())
    sql(shop, "update copies.orders set total = 0")

    def store() -> None:
        sql(shop, "insert into orders values (2, 2)")
        assert shop.run().success
        assert shown(shop)[0] == "green"
        # SQLite keeps whole seconds of when the result is reported.
        time.sleep(1)

    at_call(monkeypatch, postgres, "verify", store, after=True)
    shop.verify()

    word, _, told = shown(shop)
    assert word == "red"
    assert "different {'id': 1}" in told


def test_a_copy_is_compared_once_as_is_a_repair_and_a_small_table_every_four_minutes(
    shop: Shop,
) -> None:
    sensor = Sensor(shop)
    request = sensor.evaluate()
    assert isinstance(request, dg.RunRequest)
    # In the run's process, which is warm, and not in one for each table.
    assert request.run_config == {"execution": {"config": {"in_process": {}}}}
    assert list(request.asset_check_keys or ()) == [KEY]
    assert "no replica is due" in str(sensor.evaluate()), "also before the run has begun"
    job = shop.repository.get_job("shop_verify")
    assert request.asset_selection is None
    job = job.get_subset(asset_check_selection=set(request.asset_check_keys or ()))
    done = job.execute_in_process(instance=shop.instance)
    assert [each.asset_check_key for each in done.get_asset_check_evaluations()] == [KEY]
    assert "no replica is due" in str(sensor.evaluate())
    assert "no replica is due" in str(Sensor(shop).evaluate()), "also without its cursor"

    repair = {"ops": {"shop_repair_tables": {"config": {"tables": ["public.orders"]}}}}
    job = shop.repository.get_job("shop_repair")
    assert job.execute_in_process(instance=shop.instance, run_config=repair).success
    shop.run()
    again = sensor.evaluate()
    assert isinstance(again, dg.RunRequest)
    assert again.run_key != request.run_key

    # A small table is compared every four minutes.
    shop.verify()
    assert isinstance(sensor.evaluate(), str)
    age(shop, 5)
    request = sensor.evaluate()
    assert isinstance(request, dg.RunRequest)
    assert list(request.asset_check_keys or ()) == [KEY]
    assert request.tags["pgque/warm"] == "true"
    sql(shop, "update pgque.replica_status set row_count = 2000000")
    assert isinstance(sensor.evaluate(), str)


@pytest.mark.parametrize("options", [{"target": DeltaReplicas("lake")}])
def test_a_commit_of_somebody_else_is_noticed_and_is_a_difference(shop: Shop) -> None:
    from deltalake import DeltaTable

    sensor = Sensor(shop)
    assert isinstance(sensor.evaluate(), dg.RunRequest)
    assert all(each.passed for each in shop.verify())
    assert isinstance(sensor.evaluate(), str)
    DeltaTable(str(shop.folder / "public" / "orders")).update(updates={"total": "0"})
    assert isinstance(Sensor(shop).evaluate(), dg.RunRequest)

    (failed,) = [each for each in shop.verify() if not each.passed]
    assert failed.severity == dg.AssetCheckSeverity.ERROR
    assert "another program changed it" in str(failed.description)
    assert isinstance(Sensor(shop).evaluate(), str), "it is known"

    for number in (2, 3):
        sql(shop, f"insert into orders values ({number}, 2)")
        shop.run()
        assert shown(shop)[0] == "red", "also some batches later"
    with Client(shop.url) as client:
        (critical,) = [each for each in client.health() if each.status == "critical"]
        copy_again(client, "shop", "shop", "public.orders")
    assert "another program has written" in critical.detail
    shop.run()
    assert shown(shop)[0] == "red", "until a comparison is green"
    with Client(shop.url) as client:
        (critical,) = [each for each in client.health() if each.status == "critical"]
    assert "differed" in critical.detail
    assert isinstance(sensor.evaluate(), dg.RunRequest)
    assert all(each.passed for each in shop.verify())
    assert shown(shop)[0] == "green"


def test_no_comparison_begins_while_one_is_at_work(shop: Shop) -> None:
    # A schedule opens its own instance.
    shop.instance = dg.DagsterInstance.local_temp(str(shop.folder))
    job = shop.repository.get_job("shop_verify")
    run = shop.instance.create_run_for_job(job)
    shop.instance.report_engine_event("started", run)
    sensor = Sensor(shop)
    assert "a run of shop_verify is comparing" in str(sensor.evaluate())
    schedule = shop.repository.get_schedule_def("shop_verify_schedule")
    with dg.build_schedule_context(shop.instance, repository_def=shop.repository) as context:
        assert not schedule.evaluate_tick(context).run_requests
        shop.instance.report_run_canceled(run)
        (request,) = schedule.evaluate_tick(context).run_requests or ()
    assert request.run_config["execution"]["config"] == {"in_process": {}}
    assert isinstance(sensor.evaluate(), dg.RunRequest)


def test_a_comparison_that_never_ends_is_given_up_and_changes_nothing(
    shop: Shop, spark: SparkSession
) -> None:
    shop.verify()
    sql(shop, "update copies.orders set total = 0")
    shop.verify()
    hasty = Watched(
        shop.url,
        spark,
        shop.folder,
        ["public.orders"],
        target=PostgresReplicas(schema="copies"),
        verify_timeout=timedelta(seconds=1),
    )
    with connect(shop.url) as db, db.transaction():
        db.execute("lock table copies.orders")
        (failed,) = [each for each in hasty.verify() if not each.passed]
    assert failed.severity == dg.AssetCheckSeverity.ERROR, "the last one that ended found some"
    assert "took longer than 1.0s" in str(failed.description)
    found = status(shop)
    assert "took longer" in str(found.unverified)
    assert "different {'id': 1}" in str(found.verified_problem)
    with Client(shop.url) as client:
        (check,) = [each for each in client.health() if each.check.startswith("replica:")]
    assert check.status == "critical"


@pytest.mark.parametrize("options", [{"verify_cron": "* * * * *"}])
def test_a_comparison_that_is_long_ago_is_a_warning(shop: Shop) -> None:
    shop.verify()
    shop.run()
    assert shown(shop)[0] == "green"
    age(shop, 3)
    sql(shop, "insert into orders values (2, 2)")
    shop.run()
    word, _, told = shown(shop)
    assert word == "orange"
    assert "see why it was not compared since, as * * * * * requires" in told


@pytest.mark.parametrize("options", [{"verify_share": 0.5}])
def test_the_schedule_compares_one_part_and_a_difference_stays_red(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "WHOLE_BYTES", -1)
    config = of_one_part(shop)
    (first,) = shop.verify(config)
    assert (first.passed, first.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "1 of 2 parts were compared since the last copy" in str(first.description)
    (second,) = shop.verify(config)
    assert second.passed
    records: Any = second.metadata["parts"].value
    assert [(each["number"], each["of"]) for each in records] == [(1, 2), (2, 2)]

    sql(shop, "update copies.orders set total = 0")
    found = [each for _ in range(2) for each in shop.verify(config)]
    assert sum("At tick" in str(each.description) for each in found) == 1
    (last,) = found[-1:]
    assert (last.passed, last.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "different {'id': 1}" in str(last.description)
    assert "The job shop_repair writes" in str(last.description)
    sql(shop, "insert into orders values (2, 2)")
    shop.run()
    word, whose, told = shown(shop)
    assert (word, whose) == ("red", "of this run")
    assert "2 of 2 parts were compared since the last copy" in told

    sql(shop, "update copies.orders set total = 9 where id = 1")
    assert all(each.passed for each in shop.verify())
    shop.run()
    assert shown(shop)[0] == "green"
    copy(shop)
    word, _, told = shown(shop)
    assert word == "orange"
    assert "0 of 2 parts were compared since the last copy" in told


@pytest.mark.parametrize("options", [{"verify_share": 0.5}])
def test_a_part_that_is_compared_while_the_table_is_copied_shows_nothing_of_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.client.replicas.postgres import verify as postgres

    monkeypatch.setattr(parts, "WHOLE_BYTES", -1)
    at_call(monkeypatch, postgres, "verify", lambda: copy(shop), after=True)
    (found,) = shop.verify(of_one_part(shop))
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_a_table_that_may_differ_is_orange_and_compared_at_once_and_copied_if_it_does(
    shop: Shop,
) -> None:
    sensor = Sensor(shop)
    sensor.evaluate()
    shop.verify()
    for script, state in (
        ("vacuum full orders", "equal"),
        (
            "set session_replication_role = replica; truncate orders",
            "different",
        ),
    ):
        with connect(shop.url) as db:
            for statement in script.split("; "):
                db.execute(statement.encode())
        sql(shop, "insert into orders values (7, 7); delete from orders where id = 7")
        shop.run()
        told = f"may differ since tick {status(shop).doubt_tick}, "
        assert (shown(shop)[0], status(shop).state) == ("orange", "may differ")
        assert told in shown(shop)[2]
        assert told in metadata(shop)["pgque/verified"]
        assert "pgque/copied_because" not in metadata(shop)
        assert isinstance(sensor.evaluate(), dg.RunRequest)
        (found,) = shop.verify()
        assert (found.passed, status(shop).state) == (state == "equal", state)
        assert isinstance(sensor.evaluate(), str), "once"
    assert "rows differ, since its files were rewritten: extra {'id': 1}" in str(found.description)
    assert "The next batch copies the table." in str(found.description)
    shop.run()
    assert str(metadata(shop)["pgque/copied_because"]).endswith("extra {'id': 1}")
    assert isinstance(sensor.evaluate(), dg.RunRequest)
    (found,) = shop.verify()
    assert (found.passed, status(shop).state) == (True, "equal")


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), "0.1", True])
def test_a_share_is_a_number_up_to_one(share: Any) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="is not a share of a table"):
        build_table_replicas(
            "shop", ["public.orders"], target=DeltaReplicas("lake"), verify_share=share
        )
