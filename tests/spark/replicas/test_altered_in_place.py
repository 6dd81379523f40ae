"""A replica in the lake gets other columns without a copy, with the values that old rows have."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from pgque_dagster.client import Client, LeaseLost
from pgque_dagster.client.replicas.deletes import HARD, HISTORY, MARKS, SOFT, end_mark
from pgque_dagster.client.replicas.outcome import Copied, remember_shape
from pgque_dagster.client.replicas.shape import Altered
from pgque_dagster.client.replicas.source import SourceTable
from pgque_dagster.client.replicas.standing import find_standings
from pgque_dagster.spark.replicas import commit
from pgque_dagster.spark.replicas.formats import replica_of
from tests.support.replicas.replication import QUEUE, LakeReplication, with_columns_of
from tests.support.runner.calls import at_call

T = "public.t"
# What a table gets in added columns, by type: the default, the text of it in events, and the value.
ADDED: dict[str, tuple[str, str, Any]] = {
    "bool": ("true", "true", True),
    "smallint": ("-3", "-3", -3),
    "bigint": ("9007199254740993", "9007199254740993", 9007199254740993),
    "real": ("'-Infinity'", "-Infinity", -math.inf),
    "numeric(6, 2)": ("7.5", "7.50", Decimal("7.50")),
    "numeric": ("0.0000001", "0.0000001", "0.0000001"),
    "text": ("""e'it''s {"x", \\\\ } é\\n'""", 'it\'s {"x", \\ } é\n', 'it\'s {"x", \\ } é\n'),
    "bytea": ("'\\x00ff'", "\\x00ff", b"\x00\xff"),
    "date": ("'1582-10-10'", "1582-10-10", date(1582, 10, 10)),
    "timestamp": (
        "'1890-03-04 00:00:00.000001'",
        "1890-03-04T00:00:00.000001",
        datetime(1890, 3, 4, 0, 0, 0, 1),
    ),
    "timestamptz": (
        "'2026-03-04 00:00+02'",
        "2026-03-03T22:00:00+00:00",
        datetime(2026, 3, 3, 22, tzinfo=UTC),
    ),
    "int[]": ("'{1,2}'", "{1,2}", "{1,2}"),
    "uuid": (
        "'0D3C2B1A-0000-4000-8000-000000000000'",
        "0d3c2b1a-0000-4000-8000-000000000000",
        "0d3c2b1a-0000-4000-8000-000000000000",
    ),
}
SWAP = "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b"
AGAIN = "alter table t drop b; alter table t add b text"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "values": (
        "alter table t "
        + ", ".join(
            f"add z_{n} {kind} default {x}" for n, (kind, (x, _, _)) in enumerate(ADDED.items())
        ),
        {"added": {f"z_{n}": text for n, (_, text, _) in enumerate(ADDED.values())}},
    ),
    "nulls": ("alter table t add z int, add y timestamp", {"added": {"z": None, "y": None}}),
    "names": ("alter table t rename b to z", {"renamed": {"z": "b"}}),
    "circle": (SWAP, {"renamed": {"a": "b", "b": "a"}}),
    "types": (
        "alter table t alter n type numeric(12, 2), alter b type text",
        {"retyped": ("n", "b")},
    ),
    "drops": ("alter table t drop b", {"dropped": ("b",)}),
    "all": (
        "alter table t drop b, alter n type numeric(12, 2), add y int default 5;"
        "alter table t rename a to z",
        {"dropped": ("b",), "retyped": ("n",), "renamed": {"z": "a"}, "added": {"y": "5"}},
    ),
}

# Each case once, in each format all at once, and each way of treating deleted rows.
BY_DEFAULT = {
    *(("delta", HARD, case) for case in ("nulls", "circle", "types", "drops")),
    ("delta", SOFT, "all"),
    ("delta", HISTORY, "values"),
    ("iceberg", HARD, "all"),
}


@pytest.fixture
def table(lake: LakeReplication, request: pytest.FixtureRequest) -> LakeReplication:
    """A replica with several files, and deleted rows in some of them."""
    lake.keep(getattr(request, "param", HARD))
    lake.sql("create table t (id int primary key, a text, b varchar(5), n numeric(10, 2))")
    lake.begin("insert into t select n, 'a' || n, 'b' || n, n from generate_series(1, 20) n", T)
    lake.sql("update t set a = 'changed' where id in (2, 3); delete from t where id in (4, 5)")
    lake.follow("insert into t select n, null, 'b' || n, n from generate_series(31, 34) n")
    lake.follow("delete from t where id in (2, 31, 32)")
    lake.copied.clear()
    return lake


def alter(lake: LakeReplication, *, ack: bool = False, **facts: Any) -> bool:
    """Alters the replica in the next batch."""
    lake.tick()
    with Client(lake.url) as client:
        batch = lake.claim(client)
        copied = find_standings(client, QUEUE, lake.consumer).of(T).copied
        source = SourceTable.find(client, T, QUEUE)
        replica = replica_of(lake.target, source, QUEUE, lake.consumer, client)
        is_done = replica.alter_columns(batch, Altered(**facts), copied.shape)
        if ack:
            remember_shape(batch.claim, T, Copied(copied.transactions, source.shape))
            batch.claim.ack()
        else:
            batch.claim.release()
        return is_done


def check(lake: LakeReplication) -> None:
    """Compares the live rows, but for columns whose values look otherwise in the lake."""
    source, live = lake.source("t"), lake.live(T)
    names = [{name: 0 for name in source[0] if not name.startswith("z_")}]
    assert with_columns_of(live, names) == with_columns_of(source, names)
    if lake.target.deletes == HARD:
        assert live[0].keys() == source[0].keys()


@pytest.mark.each_format
@pytest.mark.parametrize(
    ("lake", "table", "case"),
    [
        pytest.param(*each, marks=() if each in BY_DEFAULT else pytest.mark.slow)
        for each in product(("delta", "iceberg"), MARKS, CASES)
    ],
    indirect=["lake", "table"],
)
def test_columns_are_altered_without_a_copy(table: LakeReplication, case: str) -> None:
    script, facts = CASES[case]
    before, mark = table.replica(T), end_mark(table.target.deletes)
    table.sql(script)
    commits = len(table.commits(T))
    assert alter(table, **facts)
    check(table)
    assert len(table.replica(T)) == len(before)
    for number, (_, _, value) in enumerate(ADDED.values() if case == "values" else ()):
        assert {row[f"z_{number}"] for row in table.live(T)} == {value}
    # Rows that were gone never had an added column, but the others' names and values.
    for row in table.replica(T):
        if mark and row[mark] is not None:
            assert all(row[name] is None for name in facts.get("added", ()))
    names = facts.get("renamed", {})
    dropped = facts.get("dropped", ()) if table.target.deletes == HARD else ()
    kept = {name for name in before[0] if name not in (*names.values(), *dropped)}
    assert with_columns_of(table.replica(T), [dict.fromkeys(kept)]) == with_columns_of(
        before, [dict.fromkeys(kept)]
    )
    for name, was in names.items():
        assert sorted(str(row[name]) for row in table.replica(T)) == sorted(
            str(row[was]) for row in before
        )
    # The attempt was killed before the batch's own commit, and the next one goes on.
    commits = len(table.commits(T))
    assert alter(table, **facts, ack=True)
    assert len(table.commits(T)) == commits
    table.sql("update t set n = 7.25 where id < 8; delete from t where id = 9")
    table.follow("insert into t (id, n) values (50, 1), (4, 0)")
    assert table.copied == []
    check(table)
    if mark and "dropped" in facts:
        assert [row["b"] for row in table.replica(T) if row["id"] == 9] == ["b9"]
    assert case != "all" or table.verify().is_equal
    table.sink(T).maintain(table.spark, table.url)
    check(table)


@pytest.mark.parametrize(
    "table", [pytest.param(HARD, marks=pytest.mark.each_format), SOFT], indirect=True
)
def test_a_column_that_comes_again_has_no_values_of_the_earlier_one(table: LakeReplication) -> None:
    table.sql("alter table t drop b")
    assert alter(table, dropped=("b",), ack=True)
    table.follow("insert into t values (60, 'x', 6)")
    table.sql("alter table t add b text")
    is_hard = table.target.deletes == HARD
    assert alter(table, added={"b": None}, ack=is_hard) == is_hard
    if is_hard:
        check(table)
        table.sql(AGAIN)
        assert alter(table, dropped=("b",), added={"b": None}, ack=True)
        table.follow("update t set b = 'y' where id < 10")
        check(table)
        assert table.copied == []


@pytest.mark.parametrize(
    ("then", "facts"),
    [
        ("alter table t drop z; alter table t add z int default 8", {"added": {"z": "8"}}),
        pytest.param(
            "alter table t add y int", {"added": {"z": "7", "y": None}}, marks=pytest.mark.slow
        ),
        pytest.param("alter table t drop z", {}, marks=pytest.mark.slow),
    ],
)
def test_what_a_killed_attempt_added_is_not_taken_for_another_column(
    table: LakeReplication, then: str, facts: dict[str, Any]
) -> None:
    table.sql("alter table t add z int default 7")
    assert alter(table, added={"z": "7"})
    table.sql(then)
    assert not alter(table, **facts)


def test_names_that_a_killed_attempt_swapped_are_known_when_they_are_swapped_back(
    table: LakeReplication,
) -> None:
    table.sql(SWAP)
    assert alter(table, **CASES["circle"][1])
    table.sql(SWAP)
    assert not alter(table)


def test_what_cannot_be_followed_is_left(table: LakeReplication) -> None:
    table.sql("alter table t add z date default 'infinity'")
    version = table.commits(T)
    assert not alter(table, added={"z": "infinity"})
    assert not alter(table, renamed={"z": "nothing"})
    assert not alter(table)
    assert table.commits(T) == version


def while_files_are_written(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Has something happen once when files are written again, before the commit."""
    at_call(monkeypatch, commit, "rewrite_files", step, after=True)


def test_a_compaction_in_between_loses_nothing(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_files_are_written(monkeypatch, lambda: table.sink(T).maintain(table.spark, table.url))
    table.sql("alter table t add z int default 7")
    assert alter(table, added={"z": "7"})
    check(table)


def test_rows_of_another_program_in_between_are_not_altered(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_files_are_written(monkeypatch, lambda: table.repeat_rows(T, as_ours=False))
    table.sql("alter table t add z int default 7")
    assert not alter(table, added={"z": "7"})
    assert len(table.arrow(T)) == 2 * len(table.source("t"))


def test_an_attempt_that_lost_its_lease_alters_nothing(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over() -> None:
        with Client(table.url) as client:
            lease = client.lease_info(QUEUE, table.consumer)
        table.sql(f"select pgque.release_batch({lease.batch_id}, 'a test', {lease.epoch})")

    while_files_are_written(monkeypatch, take_over)
    table.sql("alter table t add z int default 7")
    commits = table.commits(T)
    with pytest.raises(LeaseLost):
        alter(table, added={"z": "7"})
    assert table.commits(T) == commits
