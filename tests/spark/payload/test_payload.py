"""Typed payloads: what fits becomes columns, and each that does not fit keeps its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Batch, Client, InvalidArgument, MalformedPayload
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import SparkBatch, parse_payloads
from pgque_dagster.spark.payload.schema import parse_schema
from tests.support.events import claim, publish, tick
from tests.support.jobs import jobs_of

ORDER = "id bigint not null, total double"

REASONS = {
    '{"id": 1': "no JSON",
    "": "no JSON",
    "[]": "JSON, but no object",
    "42": "JSON, but no object",
    "null": "JSON, but no object",
    '"text"': "JSON, but no object",
    '{"total": 1.5}': "id is missing",
    '{"id": null}': "id is null",
    '{"id": "one"}': "id is no bigint",
    '{"total": "much"}': "id is missing, total is no double",
    '{"id": 1, "id": "x"}': "id is no bigint",
}


def opened(
    client: Client, url: str, spark: SparkSession, payloads: Sequence[Payload]
) -> SparkBatch:
    publish(client, payloads)
    return SparkBatch(spark, claim(client), url)


def given_up(client: Client) -> dict[str, str | None]:
    """The payloads that are dead letters, with their reasons."""
    return {letter.payload: letter.reason for letter in client.dead_letters("orders")}


def acked(client: Client, batch: Batch) -> dict[str, str | None]:
    batch.ack()
    return given_up(client)


def test_payload_fields_become_columns_beside_those_kept(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    (event_id,) = publish(client, [{"id": 7, "total": 1.5, "more": True}])
    batch = SparkBatch(spark, claim(client), database_url)

    (row,) = batch.payload(ORDER, keep=["ev_id"]).collect()

    assert row.asDict() == {"ev_id": event_id, "id": 7, "total": 1.5}


def test_a_payload_may_have_a_field_named_like_the_events_id(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    publish(client, [{"ev_id": 7}, {"ev_id": "seven"}])
    claimed = claim(client)

    (row,) = SparkBatch(spark, claimed, database_url).payload("ev_id bigint").collect()

    assert row.asDict() == {"ev_id": 7}
    assert list(acked(client, claimed)) == ['{"ev_id":"seven"}']


def test_fields_whose_names_differ_in_case_are_two_fields(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    batch = opened(client, database_url, spark, ['{"a": 1, "A": 2}', '{"a": 3}'])

    rows = batch.payload("a int, A int").toArrow().to_pylist()

    expected = [{"a": 1, "A": 2}, {"a": 3, "A": None}]
    assert sorted(rows, key=lambda row: row["a"]) == expected
    without_ack = parse_payloads(batch.events(), "a int, A int").toArrow().to_pylist()
    assert sorted(without_ack, key=lambda row: row["a"]) == expected


@pytest.mark.parametrize(
    "name",
    ["_pgque_id", "_pgque_malformed", "_pgque_text", "_pgque_reason", "_PGQUE_ID", "_pgque_0"],
)
def test_a_field_may_be_named_like_a_column_that_payload_reads_for_itself(
    client: Client, database_url: str, spark: SparkSession, way: str, name: str
) -> None:
    inner = t.StructType([t.StructField(name, t.LongType())])
    schema = t.StructType([t.StructField("s", inner), t.StructField(name, t.LongType())])
    publish(client, [{name: 5, "s": {name: 6}}, "[]"])
    claimed = claim(client)

    rows = SparkBatch(spark, claimed, database_url).payload(schema, keep=["ev_type"])

    assert rows.toArrow().to_pylist() == [{"ev_type": "default", "s": {name: 6}, name: 5}]
    assert acked(client, claimed) == {"[]": "malformed payload: JSON, but no object"}


def test_each_malformed_payload_becomes_a_dead_letter_with_its_reason_at_the_ack_and_not_before(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    publish(client, [{"id": 1}, *REASONS, {"id": 2}])
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, database_url)

    good = batch.payload(ORDER, max_malformed=1.0)
    ids = sorted(row.id for row in good.collect())
    before = given_up(client)

    assert ids == [1, 2]
    assert before == {}
    assert acked(client, claimed) == {
        text: f"malformed payload: {reason}" for text, reason in REASONS.items()
    }


def test_malformed_payloads_of_a_small_batch_are_known_without_a_spark_job(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    publish(client, [{"id": 1}, "{"])
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, database_url)
    spark.sparkContext.setJobGroup("malformed", "what payload() runs")

    good = batch.payload(ORDER)

    assert jobs_of(spark, "malformed") == []
    assert [row.id for row in good.collect()] == [1]
    assert acked(client, claimed) == {"{": "malformed payload: no JSON"}


def test_what_is_not_null_inside_structs_lists_and_maps_must_be_there(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    schema = (
        "at struct<street: string not null>, lines array<struct<sku: string not null>>,"
        " tags map<string, struct<n: int not null>>"
    )
    publish(
        client,
        [
            {"at": {"street": "x"}, "lines": [{"sku": "a"}], "tags": {"k": {"n": 1}}},
            {},
            {"at": None, "lines": [], "tags": {}},
            {"at": {}},
            {"lines": [{"sku": "a"}, {}]},
            {"tags": {"k": {}}},
            {"lines": [{"sku": "a"}, 7]},
            {"at": "home"},
        ],
    )
    claimed = claim(client)

    batch = SparkBatch(spark, claimed, database_url)
    rows = batch.payload(schema, max_malformed=1.0).collect()

    assert len(rows) == 3
    assert acked(client, claimed) == {
        '{"at":{}}': "malformed payload: at.street is missing",
        '{"lines":[{"sku":"a"},{}]}': "malformed payload: lines[].sku is missing",
        '{"tags":{"k":{}}}': "malformed payload: tags[].n is missing",
        '{"lines":[{"sku":"a"},7]}': "malformed payload: lines[] is no struct<sku:string>",
        '{"at":"home"}': "malformed payload: at is no struct<street:string>",
    }


def test_malformed_payloads_are_delivered_again_under_retry(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    _, event_id = publish(client, [{"id": 1}, "{"])
    claimed = claim(client)

    SparkBatch(spark, claimed, database_url).payload(
        ORDER, on_malformed="retry", retry_after=timedelta(0)
    )
    claimed.ack()
    client.maint()
    tick(client)

    (message,) = claim(client).events()
    assert (message.msg_id, message.retry_count) == (event_id, 1)


def test_malformed_payloads_fail_with_ids_and_reason_under_fail(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    _, event_id = publish(client, [{"id": 1}, "{"])
    batch = SparkBatch(spark, claim(client), database_url)

    with pytest.raises(
        MalformedPayload, match=rf"1 of 2 events .* malformed: event {event_id}: no JSON"
    ):
        batch.payload(ORDER, on_malformed="fail")


def test_malformed_payloads_stay_under_keep(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    batch = opened(client, database_url, spark, [{"id": 1}, "{"])

    rows = batch.payload(ORDER, on_malformed="keep").collect()

    assert sorted((row.id for row in rows), key=str) == [1, None]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id biggint", "is no schema: .*BIGGINT"),
        ("id varchar(3)", "char or varchar.*Write string"),
        ("id bigint, names array<char(2)>", "char or varchar.*Write string"),
        ("", "no field"),
        ("ev_time string", "both a payload field"),
        ("EV_TIME string", "both a payload field"),
        (int, "is no schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(
    client: Client, database_url: str, spark: SparkSession, schema: Any, message: str
) -> None:
    batch = opened(client, database_url, spark, [{"id": 1}])

    with pytest.raises(InvalidArgument, match=message):
        batch.payload(schema, keep=["ev_time"])


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


class Order(BaseModel):
    number: int = Field(alias="id")
    total: Decimal = Field(max_digits=10, decimal_places=0)
    share: float | None
    at: datetime
    day: date
    who: UUID
    colour: Colour
    kind: Literal["a", "b"]
    raw: bytes
    lines: list[Line]
    counts: dict[str, int | None]
    note: Optional[str]  # noqa: UP045
    paid: bool = False


def test_a_model_becomes_a_schema_with_its_types_and_what_may_be_null(spark: SparkSession) -> None:
    expected = (
        "id bigint not null, total decimal(10,0) not null, share double, at timestamp not null,"
        " day date not null, who string not null, colour string not null, kind string not null,"
        " raw binary not null,"
        " lines array<struct<sku: string not null, price: decimal(38,18) not null>> not null,"
        " counts map<string, bigint> not null, note string, paid boolean"
    )
    schema = parse_schema(spark, Order)

    assert schema.simpleString() == spark.createDataFrame([], expected).schema.simpleString()
    assert [x.name for x in schema if x.nullable] == ["share", "note", "paid"]
    assert not schema["lines"].dataType.containsNull  # type: ignore[attr-defined]
    assert schema["counts"].dataType.valueContainsNull  # type: ignore[attr-defined]


def test_payloads_of_a_model_become_typed_rows(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    order: dict[str, Any] = {
        "id": 1, "total": 5, "share": 0.5, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31",
        "who": "x", "colour": "red", "kind": "a", "raw": "AAE=", "counts": {"a": 1},
        "lines": [{"sku": "s", "price": "1.50"}],
    }  # fmt: skip
    publish(client, [order, {**order, "lines": [{"sku": "s"}]}, {**order, "day": "soon"}])
    claimed = claim(client)

    (row,) = SparkBatch(spark, claimed, database_url).payload(Order).collect()

    assert row.asDict(recursive=True) | {"at": row.at.astimezone(UTC)} == {
        "id": 1, "total": Decimal(5), "share": 0.5, "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31), "who": "x", "colour": "red", "kind": "a", "raw": b"\x00\x01",
        "lines": [{"sku": "s", "price": Decimal("1.5")}], "counts": {"a": 1}, "note": None,
        "paid": None,
    }  # fmt: skip
    assert sorted(map(str, acked(client, claimed).values())) == [
        "malformed payload: day is no date",
        "malformed payload: lines[].price is missing",
    ]


class Amounts(BaseModel):
    most: Decimal = Field(max_digits=38, decimal_places=38)
    places: Decimal = Field(decimal_places=2)
    plain: Decimal


def test_a_decimal_has_38_digits_and_18_places_unless_the_field_says_otherwise(
    spark: SparkSession,
) -> None:
    types = [field.dataType.simpleString() for field in parse_schema(spark, Amounts)]

    assert types == ["decimal(38,38)", "decimal(38,2)", "decimal(38,18)"]


class Recursive(BaseModel):
    parent: "Recursive | None"


@dataclass
class Several:
    value: int | str


@dataclass
class Duration:
    took: timedelta


class Digits(BaseModel):
    price: Decimal = Field(max_digits=10)


class ManyDigits(BaseModel):
    price: Decimal = Field(max_digits=39, decimal_places=2)


class MorePlacesThanDigits(BaseModel):
    price: Decimal = Field(max_digits=2, decimal_places=3)


@dataclass
class Anything:
    values: dict[str, Any]


@dataclass
class Numbered:
    values: dict[int, str]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Recursive, "Recursive contains itself"),
        (Several, r"Several.value is of type int \| str"),
        (Duration, "Duration.took is of type timedelta"),
        (Anything, "Anything.values is of type .*Any"),
        (Numbered, r"Numbered.values is of type dict\[int, str\]"),
        (Digits, "Digits.price has max_digits=10 without decimal_places"),
        (ManyDigits, r"ManyDigits.price has max_digits=39 and decimal_places=2"),
        (MorePlacesThanDigits, "MorePlacesThanDigits.price has max_digits=2 and decimal_places=3"),
    ],
)
def test_a_type_without_a_counterpart_is_named_with_its_field(
    spark: SparkSession, model: type, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_schema(spark, model)
