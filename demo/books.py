"""Compares the bank's tables with their replicas, which DuckDB adds up."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg import sql

# The bank's tables, each with its column of money.
MONEY = {
    "pgbench_accounts": "abalance",
    "pgbench_tellers": "tbalance",
    "pgbench_branches": "bbalance",
    "pgbench_history": "delta",
}


@dataclass(frozen=True)
class Sum:
    """The number of rows of a table, and the sum of its money."""

    rows: int
    money: int

    def __str__(self) -> str:
        """Returns both in words."""
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}, sum {self.money:,}"


@dataclass(frozen=True)
class Comparison:
    """A table of the bank, and its replica."""

    table: str
    bank: Sum
    replica: Sum

    @property
    def is_equal(self) -> bool:
        """Whether both have the same number of rows and the same sum."""
        return self.bank == self.replica


def compare(connection: psycopg.Connection[Any], lake: Path) -> list[Comparison]:
    """Compares all tables, which must not be written to meanwhile.

    Args:
        connection: a connection to the bank.
        lake: where the replicas are.
    """
    return [
        Comparison(table, bank_sum(connection, table), replica_sum(lake, table)) for table in MONEY
    ]


def bank_sum(connection: psycopg.Connection[Any], table: str) -> Sum:
    """Adds up a table of the bank."""
    query = sql.SQL("select count(*), coalesce(sum({}), 0)::bigint from {}").format(
        sql.Identifier(MONEY[table]), sql.Identifier(table)
    )
    ((rows, money),) = connection.execute(query).fetchall()
    return Sum(rows, money)


def replica_sum(lake: Path, table: str) -> Sum:
    """Adds up the replica of a table with DuckDB."""
    replica = pa.table(DeltaTable(lake / "public" / table).scan(columns=[MONEY[table]]))
    with duckdb.connect() as reader:
        reader.register("replica", replica)
        query = f"select count(*), coalesce(sum({MONEY[table]}), 0)::bigint from replica"
        ((rows, money),) = reader.execute(query).fetchall()
    return Sum(rows, money)
