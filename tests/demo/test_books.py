"""The demo's sums are those of the tables and of the replicas."""

from pathlib import Path

import psycopg
import pyarrow as pa
from deltalake import write_deltalake

from demo.books import Comparison, Sum, bank_sum, replica_sum


def test_rows_and_money_of_both_sides_are_added_up(database_url: str, tmp_path: Path) -> None:
    lake = tmp_path / "public" / "pgbench_branches"
    rows = pa.table({"bid": [1, 2, 3], "bbalance": [12, -2, None]})
    write_deltalake(lake, rows)
    with psycopg.connect(database_url) as connection:
        connection.execute("create table pgbench_branches (bid int, bbalance int)")
        assert bank_sum(connection, "pgbench_branches") == Sum(0, 0)
        connection.execute("insert into pgbench_branches values (1, 12), (2, -2), (3, null)")
        assert bank_sum(connection, "pgbench_branches") == Sum(3, 10)
    assert replica_sum(tmp_path, "pgbench_branches") == Sum(3, 10)


def test_a_comparison_finds_other_rows_and_other_money_and_tells_both_in_words() -> None:
    assert Comparison("t", Sum(3, 10), Sum(3, 10)).is_equal
    assert not Comparison("t", Sum(3, 10), Sum(2, 10)).is_equal
    assert not Comparison("t", Sum(3, 10), Sum(3, 11)).is_equal
    assert f"{Sum(1, -10)}; {Sum(2000, 0)}" == "1 row, sum -10; 2,000 rows, sum 0"
