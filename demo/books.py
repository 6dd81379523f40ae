"""Compares the balances that Spark computed from events with the bank's own balances."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
from psycopg import sql


@dataclass(frozen=True)
class Ledger:
    """An asset that computes balances, and the bank's table with the same balances.

    Attributes:
        asset: the name of the asset and of its consumer.
        key: the column of the history that identifies a balance.
        table: the bank's table of balances.
        balance: the column of the balance in this table.
    """

    asset: str
    key: str
    table: str
    balance: str


LEDGERS = (
    Ledger("branch_balances", "bid", "pgbench_branches", "bbalance"),
    Ledger("teller_balances", "tid", "pgbench_tellers", "tbalance"),
    Ledger("account_balances", "aid", "pgbench_accounts", "abalance"),
)


@dataclass(frozen=True)
class Account:
    """A balance and its number of postings."""

    balance: int
    postings: int


Accounts = dict[int, Account]
NOTHING = Account(balance=0, postings=0)


@dataclass(frozen=True)
class Mismatch:
    """An account whose balances differ between the bank and Spark."""

    key: int
    booked: Account
    derived: Account


@dataclass(frozen=True)
class Comparison:
    """How the accounts of one ledger compare."""

    ledger: Ledger
    accounts: int
    mismatches: tuple[Mismatch, ...]


def compare(ledger: Ledger, booked: Accounts, derived: Accounts) -> Comparison:
    """Compares all accounts of both sides; an account that a side lacks counts as empty."""
    keys = sorted(booked.keys() | derived.keys())
    pairs = ((key, booked.get(key, NOTHING), derived.get(key, NOTHING)) for key in keys)
    mismatches = tuple(Mismatch(key, ours, theirs) for key, ours, theirs in pairs if ours != theirs)
    return Comparison(ledger, len(keys), mismatches)


def booked_accounts(connection: psycopg.Connection[Any], ledger: Ledger) -> Accounts:
    """Reads the bank's balances, and the number of postings of each in the bank's history."""
    query = sql.SQL(
        "select {key}, {balance}, coalesce(postings, 0) from {table}"
        " left join (select {key}, count(*) as postings from pgbench_history group by {key}) h"
        " using ({key})"
    ).format(
        key=sql.Identifier(ledger.key),
        balance=sql.Identifier(ledger.balance),
        table=sql.Identifier(ledger.table),
    )
    return {key: Account(balance, postings) for key, balance, postings in connection.execute(query)}


def derived_accounts(output: Path, ledger: Ledger) -> Accounts:
    """Adds up what Spark stored for each batch."""
    folder = output / ledger.asset
    if not folder.exists():
        return {}
    batches = ds.dataset(folder, format="parquet")
    sums = (
        batches.to_table(columns=[ledger.key, "delta", "postings"])
        .group_by(ledger.key)
        .aggregate([("delta", "sum"), ("postings", "sum")])
    )
    columns = (sums[name].to_pylist() for name in (ledger.key, "delta_sum", "postings_sum"))
    return {key: Account(*values) for key, *values in zip(*columns, strict=True)}
