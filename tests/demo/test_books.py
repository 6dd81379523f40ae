"""The demo's oracle finds what differs, and nothing else."""

from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.books import LEDGERS, Account, Mismatch, booked_accounts, compare, derived_accounts

BRANCHES = LEDGERS[0]


def store(output: Path, directory: str, **columns: list[int]) -> None:
    folder = output / "branch_balances" / directory
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


def test_equal_accounts_have_no_mismatch() -> None:
    accounts = {1: Account(50, 2), 2: Account(-50, 1)}

    comparison = compare(BRANCHES, accounts, dict(accounts))

    assert (comparison.accounts, comparison.mismatches) == (2, ())


@pytest.mark.parametrize(
    "derived",
    [
        pytest.param({1: Account(50, 1), 2: Account(8, 2)}, id="balance"),
        pytest.param({1: Account(50, 1), 2: Account(7, 4)}, id="postings that cancel out"),
        pytest.param({1: Account(50, 1)}, id="missing"),
    ],
)
def test_a_planted_mismatch_is_found(derived: dict[int, Account]) -> None:
    booked = {1: Account(50, 1), 2: Account(7, 2)}

    comparison = compare(BRANCHES, booked, derived)

    assert comparison.mismatches == (Mismatch(2, booked[2], derived.get(2, Account(0, 0))),)


def test_an_account_that_only_spark_knows_is_a_mismatch() -> None:
    assert [x.key for x in compare(BRANCHES, {}, {9: Account(1, 1)}).mismatches] == [9]


def test_an_account_without_postings_may_be_missing() -> None:
    assert compare(BRANCHES, {1: Account(0, 0)}, {}).mismatches == ()


def test_derived_accounts_add_up_all_batches(tmp_path: Path) -> None:
    store(tmp_path, "batch_id=1", bid=[1, 2], delta=[10, 5], postings=[1, 2])
    store(tmp_path, "batch_id=2", bid=[1], delta=[-3], postings=[4])

    assert derived_accounts(tmp_path, BRANCHES) == {1: Account(7, 5), 2: Account(5, 2)}


def test_derived_accounts_leave_out_unfinished_and_marker_files(tmp_path: Path) -> None:
    store(tmp_path, "batch_id=1", bid=[1], delta=[10], postings=[1])
    store(tmp_path, "_batch_id=2.abc", bid=[1], delta=[10], postings=[1])
    store(tmp_path, "batch_id=1/.writing-2.abc", bid=[1], delta=[10], postings=[1])
    (tmp_path / "branch_balances" / "batch_id=1" / "_SUCCESS").touch()
    (tmp_path / "branch_balances" / "batch_id=1" / ".part-0.parquet.crc").touch()

    assert derived_accounts(tmp_path, BRANCHES) == {1: Account(10, 1)}


def test_derived_accounts_of_nothing_are_none(tmp_path: Path) -> None:
    assert derived_accounts(tmp_path, BRANCHES) == {}


def test_booked_accounts_count_the_postings_of_the_history(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            """
            create table pgbench_branches (bid int, bbalance int);
            create table pgbench_history (bid int, delta int);
            insert into pgbench_branches values (1, 12), (2, 0);
            insert into pgbench_history values (1, 7), (1, 5);
            """
        )

        assert booked_accounts(connection, BRANCHES) == {1: Account(12, 2), 2: Account(0, 0)}
