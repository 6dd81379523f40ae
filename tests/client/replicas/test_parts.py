"""The parts of a table: each block that it has is in exactly one, and none is large."""

from itertools import chain, pairwise

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.parts import Extent, Part, from_clauses, united
from pgque_dagster.client.replicas.snapshot import value_queries
from pgque_dagster.client.replicas.source import SourceTable
from tests.support.queues.sql import connect
from tests.support.servers.logins import as_login

MB, BLOCKS = 2**20, parts.PART_BYTES // 8192
PARTITIONED = """
create table t (id int primary key) partition by hash (id);
create table "P 0" partition of t for values with (modulus 3, remainder 0);
create table p1 partition of t for values with (modulus 3, remainder 1);
create table p2 partition of t for values with (modulus 3, remainder 2);
insert into t select generate_series(1, 1000);
"""
_LOCKED = "select count(*) from pg_locks join pg_class c on c.oid = relation where relkind = 'r'"


def blocks(part: Part) -> list[tuple[int, int]]:
    relation, first, end = part
    return [(relation, number) for number in range(first, end)]


def test_parts_have_all_blocks_of_a_table() -> None:
    found = Extent({7: [10 * BLOCKS + 1], 8: [1]}, (10 * BLOCKS + 2) * 8192).parts()
    assert found == [
        *((7, number * BLOCKS, (number + 1) * BLOCKS) for number in range(11)),
        (8, 0, BLOCKS),
    ]


@pytest.mark.parametrize("tasks", [1, 2, 3, 100])
def test_parts_that_are_read_together_are_united(tasks: int) -> None:
    given = [(7, 0, 4), (7, 4, 8), (7, 8, 9), (7, 12, 16), (8, 16, 20), (8, 20, 24)]
    found = united(given, tasks)
    assert [*chain(*map(blocks, found))] == [*chain(*map(blocks, given))]
    assert len(found) == {1: 3, 2: 3, 3: 4, 100: 6}[tasks]


def test_an_empty_table_has_no_parts() -> None:
    assert Extent({}, 0).parts() == []
    assert Extent({7: [0, 0], 8: [0]}, 8192).parts() == []


@pytest.mark.parametrize("sizes", [[5000] * 10, [100_000, *[1] * 50], [3, 40_000, 7000]])
def test_parts_of_partitions_are_not_larger(sizes: list[int]) -> None:
    found = Extent({7: sizes}, sum(sizes) * 8192).parts()
    assert found[0][1] == 0
    assert found[-1][2] >= max(sizes)
    assert all(one[2] == other[1] for one, other in pairwise(found))
    for _, first, end in found:
        blocks = sum(max(0, min(size, end) - first) for size in sizes)
        assert 0 < blocks <= BLOCKS


def test_long_values_make_parts_of_fewer_blocks() -> None:
    assert len(Extent({7: [BLOCKS]}, 16 * BLOCKS * 8192).parts()) == 16


def test_a_large_table_is_one_of_more_than_256_megabytes() -> None:
    assert not Extent({7: [1]}, 256 * MB).is_large
    assert Extent({7: [1]}, 257 * MB).is_large


@pytest.mark.parametrize("are_granted", [True, False])
def test_a_part_locks_one_partition_if_the_role_may_read_it(
    database_url: str, are_granted: bool
) -> None:
    login = as_login(database_url, "pgque_reader", "pgque_writer")
    with connect(database_url) as db:
        db.execute(PARTITIONED.encode())
        granted = 't, "P 0", p1, p2' if are_granted else "t"
        db.execute(f"grant select on {granted} to login_reader_writer".encode())
    with Client(login) as client, connect(login) as db:
        source = SourceTable.find(client, "t")
        found = Extent.of(client, source).parts()
        assert len(found) == (3 if are_granted else 1)
        ranges = from_clauses(client, source, found)
        rows = []
        for query in value_queries(client, source, {"id": "{}"}, ranges):
            with db.transaction():
                rows += db.execute(query.encode()).fetchall()
                assert db.value(_LOCKED + " and relname ~* '^p.?[012]$'") == 4 - len(found)
        assert sorted(number for (number,) in rows) == list(range(1, 1001))


def test_a_part_is_read_only_where_the_first_tick_is_seen(database_url: str) -> None:
    with connect(database_url) as db, connect(database_url) as other:
        other.execute("begin")
        running = int(other.value("select pg_current_xact_id()::text"))
        db.execute(parts.seen_after(db.value("select pg_current_snapshot()::text")).encode())
        later = running + 1000
        for lagging in (f"{later}:{later}:", f"{running + 1}:{running + 1}:"):
            with pytest.raises(psycopg.Error, match="lags behind the tick") as refused:
                db.execute(parts.seen_after(lagging).encode())
            assert "read the primary" in str(refused.value.diag.message_hint)
