"""A value that the lake cannot hold stops the run and the check by a sentence that says where."""

import re
from functools import partial

import pyarrow as pa
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import MalformedPayload
from pgque_dagster.client.replicas.capture import copy_again
from pgque_dagster.client.replicas.deletes import HARD, SOFT, Deletes
from pgque_dagster.client.replicas.outcome import Apart
from pgque_dagster.client.replicas.source import SourceColumn, SourceTable
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.spark.payload.changes import ChangeFormat
from pgque_dagster.spark.payload.parsing import EventParsing
from pgque_dagster.spark.replicas.misfit import misfit_error
from pgque_dagster.spark.replicas.source import spark_columns
from tests.support.replicas.replication import CONSUMER, QUEUE, LakeReplication

KINDS = {
    "id": "integer", "a b": "text", "d": "date", "n": "numeric(5,2)", "i": "integer",
    "at": "timestamp with time zone", "b": "bytea", "f": "real",
}  # fmt: skip
WELL = dict.fromkeys(KINDS, "null") | {"id": "7", "a b": '"x"'}


def error_of(ev_id: int, **values: str) -> str:
    columns = tuple(SourceColumn(name, kind, None) for name, kind in KINDS.items())
    key = ("id", "a b")
    source = SourceTable("public.t", ("public", "t"), columns, key, "", TableSpec("public.t"))
    form = ChangeFormat(spark_columns(source), key, "malformed")
    rows = [WELL, WELL | values]
    texts = [
        "{" + ",".join(f'"{name}":{value}' for name, value in row.items()) + "}" for row in rows
    ]
    events = pa.record_batch(
        {"ev_id": [1, ev_id], "ev_type": ["insert"] * 2, "ev_data": texts, "ev_extra1": ["x"] * 2}
    )
    parsing = EventParsing(form, (), partial(misfit_error, source=source))
    with pytest.raises(MalformedPayload) as failed:
        list(parsing.batches(iter([events]), fails=True))
    assert "the repair job" in str(failed.value)
    return str(failed.value.args[0])


WHERE = "the row of public.t with id 7, a b x"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("d", '"infinity"', "infinity in column d of type date"),
        ("at", '"-infinity"', "-infinity in column at of type timestamp with time zone"),
        ("n", '"NaN"', "NaN in column n of type numeric(5,2)"),
        ("d", '"10000-01-01"', "a time outside the years 1 to 9999 in column d"),
        ("at", '"0044-03-15T12:00:00+00:00 BC"', "a time outside the years 1 to 9999 in column at"),
        ("n", '"1000.001"', "a text in column n of type numeric(5,2)"),
        ("b", '"secret"', "a text in column b of type bytea"),
        ("i", "9999999999", "a value of JSON's kind int in column i of type integer"),
        ("i", "true", "a value of JSON's kind bool in column i"),
        ("f", '"1e39"', "a text in column f of type real"),
    ],
)
def test_the_error_says_row_column_and_kind(name: str, value: str, words: str) -> None:
    found = error_of(12, **{name: value})
    assert found.startswith(f"{WHERE} (event 12) has {words}")
    assert "secret" not in found
    assert error_of(0, **{name: value}).startswith(f"{WHERE} has {words}")


def test_a_row_without_a_column_or_key_is_named_as_far_as_it_can_be() -> None:
    assert "in column id of type integer" in error_of(5, id="null")
    (reader,) = [error_of(5, **{"d": '"2026-01-01"}, {"'})]
    assert reader.startswith("the row of public.t with id None, a b None (event 5) does not fit")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "deletes"), [("delta", SOFT), ("iceberg", HARD)])
def test_a_value_that_does_not_fit_stops_runs_and_checks_until_it_is_mended(
    request: pytest.FixtureRequest, kind: str, deletes: Deletes
) -> None:
    lake: LakeReplication = request.getfixturevalue(kind)
    lake.keep(deletes)
    lake.sql("create table t (id int primary key, d date); insert into t values (1, 'infinity')")
    lake.capture("public.t")
    lake.tick()
    where = "the row of public.t with id {} has infinity in column d of type date"

    def stands_apart(number: int) -> None:
        (apart,) = lake.run()
        assert isinstance(apart, Apart)
        assert where.format(number) in re.sub(r" \(event \d+\)", "", apart.reason)

    stands_apart(1)
    lake.sql("update t set d = '2026-01-01'")
    with Client(lake.url) as client:
        copy_again(client, QUEUE, CONSUMER, "public.t")
    lake.catch_up()
    lake.sql("insert into t values (2, 'infinity')")
    found = lake.verify()
    assert not found.is_equal
    assert "with id 2" in str(found.why_not)
    for _ in range(2):
        lake.tick()
        stands_apart(2)
        # The copy that repairs finds the row as well.
        with Client(lake.url) as client:
            copy_again(client, QUEUE, CONSUMER, "public.t")
    lake.sql("update t set d = '2026-01-02'")
    lake.catch_up()
    assert lake.verify().is_equal
