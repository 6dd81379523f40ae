"""The corpus as a few batches, each of one schema, and what is wrong with what was read of one."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from tests.spark.payload.payload_corpus import Case, cases

# PostgreSQL's text holds no character zero.
CASES = [case for case in cases() if "\0" not in case.payload]


def of_one_field() -> tuple[t.StructType, list[Case]]:
    """Cases of one field x, each with the field's type as its name, to be read as one batch."""
    schema, read = t.StructType(), []
    for case in CASES:
        (field, *others) = case.schema
        if others or field.name != "x" or not case.payload.startswith('{"x":'):
            continue
        name = field.dataType.simpleString()
        if name not in schema.names:
            schema = schema.add(name, field.dataType)
        payload = case.payload.replace('"x"', f'"{name}"', 1)
        reason = case.reason and case.reason.replace("$.x", f"$.{name}")
        read.append(Case(schema, payload, case.values and {name: case.values["x"]}, reason))
    return schema, read


def of_schema(size: int) -> tuple[t.StructType, list[Case]]:
    """Cases of the schema with so many fields of their own."""
    schema = next(case.schema for case in CASES if len(case.schema) == size)
    return schema, [case for case in CASES if case.schema == schema]


SCHEMAS = [of_one_field(), of_schema(2), of_schema(5)]
SCHEMA_NAMES = ["values", "documents", "orders"]


def read_batch(client: Client, batch: SparkBatch, schema: t.StructType) -> list[dict[str, Any]]:
    """The rows of `payload`, and those of the dead letters that the ack leaves."""
    earlier = {letter.id for letter in client.dead_letters(batch.queue, 1000)}
    fitting = batch.payload(schema, keep=["ev_id"], max_malformed=1.0).toArrow().to_pylist()
    batch.claim.ack()
    prefix = "malformed payload: "
    found = client.dead_letters(batch.queue, 1000)
    letters = [letter for letter in found if letter.id not in earlier]
    assert all(str(letter.reason).startswith(prefix) for letter in letters)
    return [
        *({**row, "ev_malformed": None} for row in fitting),
        *(
            {"ev_id": letter.event_id, "ev_malformed": str(letter.reason).removeprefix(prefix)}
            for letter in letters
        ),
    ]


def wrong(rows: list[dict[str, Any]], expected: Mapping[int, Case]) -> list[str]:
    """How rows with ev_id and ev_malformed, all events of a batch, differ from the corpus."""
    found = {row["ev_id"]: row for row in rows}
    if len(found) != len(rows) or found.keys() != expected.keys():
        return [f"read {sorted(row['ev_id'] for row in rows)}, not {sorted(expected)}"]
    differences = []
    for event_id, case in expected.items():
        row = {**found[event_id]}
        del row["ev_id"]
        reason = row.pop("ev_malformed")
        values = case.values
        if not fits(case, row, reason):
            differences.append(f"{case.payload[:80]}: {row}, {reason}, not {values}, {case.reason}")
    return differences


def fits(case: Case, values: dict[str, Any], reason: str | None) -> bool:
    """Whether a payload is read as the corpus says."""
    if case.reason is not None:
        return reason is not None and case.reason in reason
    wanted = {**dict.fromkeys(case.schema.names), **(case.values or {})}
    return reason is None and shown(values) == shown(wanted)


def shown(result: object) -> str:
    """Tells 0.0 from -0.0, and 1 from 1.0 and True."""
    return repr(result).replace("zoneinfo.ZoneInfo(key='UTC')", repr(UTC))
