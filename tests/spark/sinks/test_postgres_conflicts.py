"""Writes into a Postgres table that meet others: of other transactions, and of the same batch."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException

from pgque_dagster.client import Client, InvalidArgument, TransactionOutdated
from pgque_dagster.spark import PostgresSink
from tests.support.queues.sql import connect, rows, value
from tests.support.runner.waiting import wait_until
from tests.support.spark.balances import ADD, TABLE, Work, balances, run

SECOND = "was already written to public.balance"


# A merge that loses against another transaction.


def be_serializable(url: str) -> None:
    """A row, in a database that wants its transactions serializable."""
    with connect(url) as db:
        name = value(db, "select quote_ident(current_database())")
        set_it = f"alter database {name} set default_transaction_isolation = 'serializable'"
        db.execute(set_it.encode())
        db.execute(b"insert into balance values ('x', 5)")


@contextmanager
def another_writer(url: str) -> Iterator[None]:
    """Changes the row, and commits as soon as somebody waits for it."""

    def change() -> None:
        with connect(url) as db, db.transaction():
            db.execute("set transaction isolation level read committed")
            db.execute("update balance set amount = amount + 100")
            ready.append(True)
            waiting = (
                "select count(*) from pg_locks l join pg_stat_activity a using (pid)"
                " where not l.granted and a.datname = current_database()"
            )
            wait_until(lambda: db.execute("select pg_stat_clear_snapshot()") and value(db, waiting))

    ready: list[bool] = []
    with ThreadPoolExecutor(1) as threads:
        changed = threads.submit(change)
        while not ready and not changed.done():
            time.sleep(0.01)
        yield
        changed.result()


@pytest.mark.parametrize("by", ["the same attempt", "the next one"])
def test_after_an_ack_that_loses_against_another_writer_the_batch_counts_once(
    work: Work, by: str
) -> None:
    be_serializable(work.url)
    with Client(work.url) as strict:  # connects after the change
        work.client = strict
        batch = work.claim()
        work.write(batch)

        with another_writer(work.url), pytest.raises(TransactionOutdated) as caught:
            batch.claim.ack()

        assert "add into" in str(caught.value) and "concurrent update" in str(caught.value)
        assert balances(work.url) == [("x", 105)]
        if by == "the next one":
            batch.claim.release()
            batch = work.claim()
            work.write(batch)
        batch.claim.ack()
        assert balances(work.url) == [("x", 106)]
        assert strict.next_batch("orders", "revenue") is None


def test_elsewhere_a_conflict_stores_nothing_and_the_next_attempt_counts_once(
    work: Work, elsewhere: str
) -> None:
    be_serializable(elsewhere)
    batch = work.claim()

    with another_writer(elsewhere), pytest.raises(TransactionOutdated, match="concurrent update"):
        work.write(batch, url=elsewhere)

    assert balances(elsewhere) == [("x", 105)]
    batch.claim.release()
    work.write(work.claim(), url=elsewhere)
    assert balances(elsewhere) == [("x", 106)]


# Two writes of one batch to one table: refused, or told apart by names.


def test_a_second_write_is_refused_whatever_the_tables_spelling_and_the_databases_address(
    work: Work, elsewhere: str
) -> None:
    batch = work.claim()
    work.write(batch, 5)
    work.write(batch, 5, url=elsewhere)

    for address in (None, elsewhere):
        for table in ("balance", "public.balance", 'public."balance"', "BALANCE"):
            with pytest.raises(InvalidArgument, match=SECOND) as refused:
                PostgresSink(table, url=address, **ADD).write(batch, work.amounts(7))
            assert "name=" in str(refused.value)
    sign = "&" if "?" in elsewhere else "?"
    for option in ("options=-csearch_path%3Dpublic", "options=-ctimezone%3DAsia/Tokyo"):
        with pytest.raises(InvalidArgument, match=SECOND):
            work.write(batch, 7, url=f"{elsewhere}{sign}{option}")
    batch.claim.ack()
    assert balances(work.url) == balances(elsewhere) == [("x", 5)]


def test_tables_of_one_name_in_two_schemas_are_two(work: Work, elsewhere: str) -> None:
    run(elsewhere, "create schema other", TABLE.replace("balance", "other.balance"))
    batch = work.claim()

    work.write(batch, 5, url=elsewhere)
    PostgresSink("other.balance", url=elsewhere, **ADD).write(batch, work.amounts(7))

    with connect(elsewhere) as db:
        assert rows(db, "select sum(amount)::int from other.balance") == [(7,)]


def test_names_tell_writes_apart_and_each_counts_once(work: Work, elsewhere: str) -> None:
    for end in ("release", "ack"):
        batch = work.claim()
        for address in (elsewhere, None):
            for name, amount in (("debits", 5), ("credits", 7), (None, 100)):
                work.write(batch, amount, url=address, name=name)
        getattr(batch.claim, end)()

    assert balances(elsewhere) == balances(work.url) == [("x", 112)]


def test_a_write_that_failed_may_be_done_again_in_the_same_attempt(
    work: Work, elsewhere: str
) -> None:
    batch = work.claim()
    broken = work.spark.sql("select 'x' as account, int(raise_error('broken')) as amount")
    for address in (elsewhere, None):
        with pytest.raises(PySparkException, match="broken"):
            PostgresSink("balance", url=address, **ADD).write(batch, broken)
        work.write(batch, 5, url=address)
    batch.claim.ack()

    assert balances(elsewhere) == balances(work.url) == [("x", 5)]
