"""`@pgque_asset`: claim, compute, store, check, ack, in this order and no other."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish


def open_batch(client: Client) -> int | None:
    """Opens the next batch, if there is one; returns its id."""
    return client.next_batch("orders", "revenue")


@pgque_asset(queue="orders", consumer="revenue")
def payloads(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events().collect())


def test_the_batch_is_acked_after_the_output_is_stored(client: Client, spark: SparkSession) -> None:
    publish(client, ["a", "b"])
    held_while_storing = []
    store = StoringIOManager(
        lambda value: held_while_storing.append(client.lease_info("orders", "revenue"))
    )

    result = materialize(payloads, client.url, spark, io_manager=store)

    assert result.success
    assert store.stored == [["a", "b"]]
    assert held_while_storing[0] is not None and held_while_storing[0].is_live
    assert open_batch(client) is None


def test_a_batch_whose_output_could_not_be_stored_is_free_for_the_next_attempt(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    def fail(value: object) -> None:
        raise OSError("disk full")

    failed = materialize(payloads, client.url, spark, io_manager=StoringIOManager(fail))
    again = StoringIOManager()
    succeeded = materialize(payloads, client.url, spark, io_manager=again)

    assert not failed.success
    assert succeeded.success
    assert again.stored == [["a"]]


def test_a_batch_whose_body_failed_is_free_and_its_dead_letters_were_not_written(
    client: Client, spark: SparkSession
) -> None:
    (event_id,) = publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue")
    def failing(batch: SparkBatch) -> None:
        batch.dead_letter([event_id], reason="no good")
        raise ValueError("boom")

    result = materialize(failing, client.url, spark)

    assert not result.success
    assert open_batch(client) is not None
    assert client.dead_letter_counts("orders") == []


@pytest.mark.parametrize(
    ("blocking", "severity", "acked"),
    [
        (True, dg.AssetCheckSeverity.ERROR, False),
        (True, dg.AssetCheckSeverity.WARN, True),
        (False, dg.AssetCheckSeverity.ERROR, True),
    ],
)
@pytest.mark.parametrize("inside_result", [True, False])
def test_only_a_failed_blocking_check_keeps_a_batch_from_being_acked(
    client: Client,
    spark: SparkSession,
    blocking: bool,
    severity: dg.AssetCheckSeverity,
    acked: bool,
    inside_result: bool,
) -> None:
    publish(client, ["a"])
    spec = dg.AssetCheckSpec("plausible", asset="checked", blocking=blocking)

    @pgque_asset(queue="orders", consumer="revenue", check_specs=[spec])
    def checked(batch: SparkBatch) -> Iterator[object]:
        check = dg.AssetCheckResult(passed=False, severity=severity)
        if inside_result:
            yield dg.MaterializeResult(check_results=[check])
        else:
            yield dg.Output(batch.event_count)
            yield check

    result = materialize(checked, client.url, spark)

    assert result.success == acked
    assert (open_batch(client) is None) == acked


def test_without_a_batch_the_asset_is_skipped(client: Client, spark: SparkSession) -> None:
    result = materialize(payloads, client.url, spark)

    assert result.success
    assert result.get_asset_materialization_events() == []


def test_a_batch_that_another_run_works_on_is_left_alone(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])
    other = client.claim("orders", "revenue", owner="another run")

    result = materialize(payloads, client.url, spark)

    assert result.success
    assert result.get_asset_materialization_events() == []
    assert other is not None
    other.ack()


def test_a_run_for_a_batch_that_is_done_takes_no_other(client: Client, spark: SparkSession) -> None:
    publish(client, ["a"])
    done = client.claim("orders", "revenue", owner="another run")
    assert done is not None
    done.ack()
    publish(client, ["b"])
    next_one = open_batch(client)

    result = materialize(payloads, client.url, spark, tags={"pgque/batch_id": str(done.batch_id)})

    assert result.get_asset_materialization_events() == []
    assert open_batch(client) == next_one


def test_a_run_that_lost_its_batch_fails_and_acks_nothing(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    def take_over(value: object) -> None:
        with client.transaction() as connection:
            connection.execute("update pgque.position_log set lease_until = now() - interval '1s'")
        assert client.claim("orders", "revenue", owner="a faster run") is not None

    result = materialize(payloads, client.url, spark, io_manager=StoringIOManager(take_over))
    lease = client.lease_info("orders", "revenue")

    assert not result.success
    assert lease is not None and lease.owner == "a faster run"


def test_the_lease_is_kept_while_the_body_works_longer_than_it_lasts(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", lease_ttl=timedelta(seconds=2))
    def slow(batch: SparkBatch) -> None:
        time.sleep(3)
        lease = client.lease_info("orders", "revenue")
        assert lease is not None and lease.is_live

    assert materialize(slow, client.url, spark).success
    assert not [t for t in threading.enumerate() if t.name.startswith("pgque-lease")]


def test_a_body_gets_what_it_names_beside_the_batch(client: Client, spark: SparkSession) -> None:
    publish(client, ["a"])

    class Rates(dg.ConfigurableResource[float]):
        euro: float

    @dg.asset
    def tax() -> float:
        return 0.5

    @pgque_asset(queue="orders", consumer="revenue", group_name="sales", tags={"team": "x"})
    def named(
        context: dg.AssetExecutionContext, batch: SparkBatch, tax: float, rates: Rates
    ) -> tuple[str, int, float, float]:
        """Returns its arguments."""
        return context.asset_key.to_user_string(), batch.event_count, tax, rates.euro

    store = StoringIOManager()
    result = materialize(
        named,
        client.url,
        spark,
        io_manager=store,
        others=(tax,),
        resources={"rates": Rates(euro=1.25)},
    )
    (spec,) = named.specs

    assert result.success
    assert store.stored[-1] == ("named", 1, 0.5, 1.25)
    assert (spec.group_name, spec.tags["team"], spec.description) == (
        "sales",
        "x",
        "Returns its arguments.",
    )


@pytest.mark.parametrize("kind", ["none", "value", "output", "result", "generator"])
def test_every_form_of_result_carries_the_batch_in_its_metadata(
    client: Client, spark: SparkSession, kind: str
) -> None:
    publish(client, ["a", "b"])

    @pgque_asset(queue="orders", consumer="revenue", returns_nothing=kind == "none")
    def shaped(batch: SparkBatch) -> object:
        def generator() -> Iterator[object]:
            yield dg.Output(1, metadata={"mine": 1})

        return {
            "none": None,
            "value": 1,
            "output": dg.Output(1, metadata={"mine": 1}),
            "result": dg.MaterializeResult(metadata={"mine": 1}),
            "generator": generator(),
        }[kind]

    result = materialize(shaped, client.url, spark)
    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata

    assert metadata["pgque/events"].value == 2
    assert metadata["pgque/queue"].value == "orders"
    assert ("mine" in metadata) == (kind in {"output", "result", "generator"})
    assert open_batch(client) is None


def test_malformed_payloads_are_dead_letters_after_the_run(
    client: Client, spark: SparkSession
) -> None:
    publish(client, [{"total": 1.5}, "{broken", {"total": 2}])

    @pgque_asset(queue="orders", consumer="revenue")
    def total(batch: SparkBatch) -> float:
        row = batch.payload("total double not null").groupBy().sum("total").first()
        return float(row[0])

    store = StoringIOManager()
    result = materialize(total, client.url, spark, io_manager=store)
    (count,) = client.dead_letter_counts("orders")

    assert result.success
    assert store.stored == [3.5]
    assert (count.consumer, count.count) == ("revenue", 1)


def test_a_consumer_is_registered_on_first_use(client: Client, spark: SparkSession) -> None:
    @pgque_asset(queue="orders")
    def newcomer(batch: SparkBatch) -> None:
        return None

    result = materialize(newcomer, client.url, spark)

    assert result.success
    assert [info.name for info in client.consumers("orders")] == ["newcomer", "revenue"]


def test_an_unknown_queue_fails_the_run_by_name(client: Client, spark: SparkSession) -> None:
    @pgque_asset(queue="odrers")
    def misspelt(batch: SparkBatch) -> None:
        return None

    result = materialize(misspelt, client.url, spark)
    error = result.failure_data_for_node("misspelt").error  # type: ignore[union-attr]

    assert 'queue "odrers" does not exist' in str(error)


def test_a_function_without_batch_is_refused_when_it_is_defined() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="no parameter 'batch'"):

        @pgque_asset(queue="orders")
        def nothing() -> None:
            return None
