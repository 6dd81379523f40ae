"""The demo's oracle finds what differs, and nothing else."""

from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from demo.books import LEDGERS, Account, Mismatch, booked_accounts, compare, derived_accounts

BRANCHES = LEDGERS[0]


def store(output: Path, directory: str, **columns: list[int]) -> None:
    folder = output / "branch_balances" / directory
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


def test_what_differs_is_found_and_nothing_else() -> None:
    booked = {1: Account(50, 1), 2: Account(7, 2), 3: Account(0, 0)}
    assert compare(BRANCHES, booked, dict(booked)).accounts == 3
    for derived, differing in (
        (booked, None),
        ({1: Account(50, 1), 2: Account(7, 2)}, None),  # an account without postings is missing
        ({**booked, 2: Account(8, 2)}, 2),
        ({**booked, 2: Account(7, 4)}, 2),  # postings that cancel out
        ({1: Account(50, 1)}, 2),
        ({**booked, 9: Account(1, 1)}, 9),  # an account that only Spark knows
    ):
        nothing = Account(0, 0)
        expected = (
            ()
            if differing is None
            else (
                Mismatch(
                    differing, booked.get(differing, nothing), derived.get(differing, nothing)
                ),
            )
        )
        assert compare(BRANCHES, booked, derived).mismatches == expected


def test_derived_accounts_add_up_all_batches_that_are_finished(tmp_path: Path) -> None:
    assert derived_accounts(tmp_path, BRANCHES) == {}
    store(tmp_path, "batch-1", bid=[1, 2], delta=[10, 5], postings=[1, 2])
    store(tmp_path, "batch-2", bid=[1], delta=[-3], postings=[4])
    store(tmp_path, "_batch-2.abc", bid=[1], delta=[10], postings=[1])
    store(tmp_path, "batch-1/.writing-2.abc", bid=[1], delta=[10], postings=[1])
    (tmp_path / "branch_balances" / "batch-1" / "_SUCCESS").touch()
    (tmp_path / "branch_balances" / "batch-1" / ".part-0.parquet.crc").touch()
    assert derived_accounts(tmp_path, BRANCHES) == {1: Account(7, 5), 2: Account(5, 2)}


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
