"""A claimed batch as DataFrames; both ways of reading must give the same."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark import batch as batch_module
from tests.support.events import claim, make_queue, publish, tick

ORDER = "id bigint not null, total double"
MALFORMED = ['{"id": 1', "[]", "42", "null", "", '"text"', '{"total": 1.5}', '{"id": "one"}']


@pytest.fixture(params=["driver", "executors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads on the driver, or through the data source."""
    if request.param == "executors":
        monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)
    return str(request.param)


def test_events_are_those_of_the_batch(database_url: str, spark: SparkSession, way: str) -> None:
    with Client(database_url) as client:
        make_queue(client)
        ids = publish(client, ["a", "b", "c"])
        batch = SparkBatch(spark, claim(client), database_url)

        rows = batch.events().orderBy("ev_id").collect()

        assert batch.event_count == 3
        assert [(row.ev_id, row.ev_data) for row in rows] == list(
            zip(ids, ["a", "b", "c"], strict=True)
        )


def test_an_empty_batch_has_no_events(database_url: str, spark: SparkSession, way: str) -> None:
    with Client(database_url) as client:
        make_queue(client)
        tick(client)
        batch = SparkBatch(spark, claim(client), database_url)

        assert batch.events().count() == 0
        assert batch.payload(ORDER).columns == ["id", "total"]


def test_payload_fields_become_columns_beside_those_kept(
    database_url: str, spark: SparkSession, way: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        (event_id,) = publish(client, [{"id": 7, "total": 1.5, "more": True}])
        batch = SparkBatch(spark, claim(client), database_url)

        (row,) = batch.payload(ORDER, keep=["ev_id"]).collect()

        assert row.asDict() == {"ev_id": event_id, "id": 7, "total": 1.5}


def test_malformed_payloads_become_dead_letters_with_the_ack_and_not_before(
    database_url: str, spark: SparkSession, way: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}, *MALFORMED, {"id": 2}])
        claimed = claim(client)
        batch = SparkBatch(spark, claimed, database_url)

        good = batch.payload(ORDER)
        ids = sorted(row.id for row in good.collect())
        before = client.dead_letter_counts("orders")
        claimed.ack()
        (after,) = client.dead_letter_counts("orders")

        assert ids == [1, 2]
        assert before == []
        assert after.count == len(MALFORMED)
        assert (
            after.reason
            == "malformed payload: no JSON object of (id bigint not null, total double)"
        )


def test_malformed_payloads_are_delivered_again_under_retry(
    database_url: str, spark: SparkSession
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        (event_id,) = publish(client, ["{"])
        claimed = claim(client)
        batch = SparkBatch(spark, claimed, database_url)

        batch.payload(ORDER, on_malformed="retry", retry_after=batch_module.timedelta(0))
        claimed.ack()
        client.maint()
        tick(client)

        (message,) = claim(client).events()
        assert (message.msg_id, message.retry_count) == (event_id, 1)


def test_malformed_payloads_fail_by_name_under_fail(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        _, event_id = publish(client, [{"id": 1}, "{"])
        batch = SparkBatch(spark, claim(client), database_url)

        with pytest.raises(MalformedPayload, match=rf"1 events .* the first are \[{event_id}\]"):
            batch.payload(ORDER, on_malformed="fail")


def test_malformed_payloads_stay_under_keep(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}, "{"])
        batch = SparkBatch(spark, claim(client), database_url)

        rows = batch.payload(ORDER, on_malformed="keep").collect()

        assert sorted((row.id for row in rows), key=str) == [1, None]


def test_events_of_a_dataframe_are_nacked_and_given_up(
    database_url: str, spark: SparkSession
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": n} for n in range(4)])
        claimed = claim(client)
        batch = SparkBatch(spark, claimed, database_url)
        orders = batch.payload("id bigint", keep=["ev_id"])

        batch.nack(orders.where(f.col("id") < 2))
        batch.dead_letter(orders.where(f.col("id") == 3), reason="not for us")
        result = claimed.ack()

        assert (result.nacked, result.dead_lettered) == (2, 1)
        assert [count.reason for count in client.dead_letter_counts("orders")] == ["not for us"]


def test_a_dataframe_without_ids_is_refused(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}])
        batch = SparkBatch(spark, claim(client), database_url)

        with pytest.raises(InvalidArgument, match="no column ev_id, only id"):
            batch.dead_letter(batch.payload("id bigint"), reason="any")


@pytest.mark.parametrize(
    ("schema", "message"),
    [("id biggint", "is no schema"), ("", "no field"), ("ev_time string", "both a payload field")],
)
def test_a_schema_that_cannot_be_used_is_named(
    database_url: str, spark: SparkSession, schema: str, message: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}])
        batch = SparkBatch(spark, claim(client), database_url)

        with pytest.raises(InvalidArgument, match=message):
            batch.payload(schema, keep=["ev_time"])
