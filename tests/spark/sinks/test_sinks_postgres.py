"""Results in a Postgres table: each batch counts once, whatever fails between."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from threading import Event
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pgque_dagster.client import (
    Client,
    InvalidArgument,
    LeaseLost,
    StagingLost,
    TransactionOutdated,
    ledger,
)
from pgque_dagster.spark import PostgresSink
from pgque_dagster.spark.sinks.postgres import stage
from tests.support.queues.events import publish
from tests.support.queues.sql import PATIENCE_SECONDS, connect, rows, value
from tests.support.runner.calls import at_call
from tests.support.runner.waiting import wait_until
from tests.support.spark.balances import ADD, TABLE, Work, balances, run, somebody_waits, stages


def test_rows_count_with_the_ack_and_not_before(work: Work) -> None:
    batch = work.claim()

    PostgresSink("balance").write(batch, work.amounts())
    before = balances(work.url)
    batch.claim.ack()

    assert before == []
    assert balances(work.url, ", note") == [("x", 1.0, "new")]
    assert stages(work.url) == []


def test_upsert_replaces_the_values_given_and_keeps_the_others(work: Work) -> None:
    run(work.url, "insert into balance values ('x', 5, 'kept'), ('z', 9, 'kept')")
    batch = work.claim()
    given = [("x", Decimal("1.5")), ("y", Decimal(2))]
    frame = work.spark.createDataFrame(given, "account string, amount decimal(10,2)")

    PostgresSink("public.balance", key=["account"], mode="upsert").write(batch, frame)
    batch.claim.ack()

    assert balances(work.url, ", note") == [
        ("x", 1.5, "kept"),
        ("y", 2.0, "new"),
        ("z", 9.0, "kept"),
    ]


def test_add_sums_the_batch_and_what_is_there(work: Work) -> None:
    run(work.url, "insert into balance values ('x', 5), ('n', null)")
    batch = work.claim()
    given = [(account, Decimal(n)) for account, n in zip("xxyn", (1.25, 2, 7, 3), strict=True)]
    frame = work.spark.createDataFrame(given, "account string, amount decimal(10,2)")

    PostgresSink("balance", **ADD).write(batch, frame.repartition(3))
    batch.claim.ack()

    assert balances(work.url) == [("n", 3.0), ("x", 8.25), ("y", 7.0)]


def test_attempts_that_were_released_leave_nothing_to_the_next(work: Work) -> None:
    for _ in range(2):
        batch = work.claim()
        work.write(batch)
        batch.claim.release()

    batch = work.claim()
    work.write(batch)
    batch.claim.ack()

    assert balances(work.url) == [("x", 1.0)]
    assert stages(work.url) == []


def test_an_attempt_that_lost_its_lease_merges_nothing(work: Work) -> None:
    late = work.claim()
    work.write(late)
    run(work.url, "update pgque.position_log set lease_until = now() where sub_batch is not null")
    new = work.claim()
    work.write(new)

    with pytest.raises(StagingLost, match="Another attempt at the batch"):
        late.claim.ack()
    new.claim.ack()

    assert balances(work.url) == [("x", 1.0)]


def test_what_the_server_lost_in_a_crash_keeps_the_batch_open(work: Work) -> None:
    batch = work.claim()
    work.write(batch)
    run(work.url, f"truncate {stages(work.url)[0][0]}")

    with pytest.raises(StagingLost, match="holds 0 of 1 rows"):
        batch.claim.ack()

    assert balances(work.url) == []
    batch.claim.release()
    assert work.claim().batch_id == batch.batch_id


def test_in_another_database_a_batch_counts_once(work: Work, elsewhere: str) -> None:
    for end in ("release", "release", "ack"):
        batch = work.claim()
        work.write(batch, url=elsewhere)
        getattr(batch.claim, end)()
    publish(work.client, ["c"])
    work.write(work.claim(), url=elsewhere)

    assert balances(elsewhere) == [("x", 2.0)]
    assert stages(elsewhere) == []


def test_of_two_attempts_at_once_elsewhere_one_counts(
    work: Work, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stages while the first, that was thought dead, has not merged yet."""
    late = work.claim()
    late.claim.release()
    new = work.claim()

    checks = at_call(monkeypatch, stage.Stage, "check", lambda: work.write(new, url=elsewhere))
    work.write(late, url=elsewhere)

    assert len(checks) == 2
    assert balances(elsewhere) == [("x", 1.0)]


def test_an_attempt_that_finds_the_batch_applied_leaves_no_stage(
    work: Work, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.claim()
    work.write(first, url=elsewhere)
    first.claim.release()
    late, has = work.claim(), ledger.Ledger.has

    def too_early(self: ledger.Ledger, connection: Any, batch: str) -> bool:
        monkeypatch.setattr(ledger.Ledger, "has", has)
        return False

    monkeypatch.setattr(ledger.Ledger, "has", too_early)
    work.write(late, url=elsewhere)

    assert balances(elsewhere) == [("x", 1.0)]
    assert stages(elsewhere) == []


def test_stages_of_dead_drivers_are_removed(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = work.claim()
    monkeypatch.setattr(stage, "_PROCESS", "0123abcd")
    work.write(dead)
    run(work.url, "create table pgque_stage_0123456789ab_01234567_1700000000_abcdef ()")
    monkeypatch.undo()
    dead.claim.release()

    batch = work.claim()
    work.write(batch)
    batch.claim.ack()

    assert stages(work.url) == []


def test_what_the_table_cannot_take_is_named_before_spark_works(work: Work) -> None:
    batch = work.claim()
    upsert = {"mode": "upsert", "key": ["amount"]}
    for table, options, ddl, message in (
        ("nowhere", {}, "account string", "there is no table nowhere"),
        ("balance", {}, "account string, colour string", "has no column colour"),
        ("balance", upsert, "amount int", "primary key or unique index"),
        ("balance", ADD, "account string, note string", r"sum\("),
        ("balance", ADD, "amount int", "no column account"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            PostgresSink(table, **options).write(batch, work.spark.createDataFrame([], ddl))

    assert stages(work.url) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "merge"}, "no mode 'merge'"),
        ({"mode": "add"}, "mode add needs a key"),
        ({"key": ["account"]}, "mode append has no key"),
    ],
)
def test_mode_and_key_must_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PostgresSink("balance", **options)


def test_two_rows_of_one_key_cannot_be_upserted(work: Work) -> None:
    batch = work.claim()
    frame = work.amounts().union(work.amounts(2))
    PostgresSink("balance", key=["account"], mode="upsert").write(batch, frame)

    with pytest.raises(InvalidArgument, match="aggregate them first"):
        batch.claim.ack()

    assert balances(work.url) == stages(work.url) == []


@pytest.mark.parametrize("amount", ["bigint(if(id = 2, raise_error('broken'), id))", "-id"])
def test_an_attempt_that_fails_leaves_no_stage(work: Work, elsewhere: str, amount: str) -> None:
    """Whether a task fails, or the table refuses the rows."""
    frame = work.spark.range(3).selectExpr("string(id) as account", f"{amount} as amount")
    for url in (work.url, elsewhere):
        run(url, "alter table balance add check (amount >= 0)")
        batch = work.claim()

        with pytest.raises((PySparkException, InvalidArgument), match=r"broken|violates check"):
            PostgresSink("balance", url=None if url == work.url else url).write(batch, frame)
            batch.claim.ack()
        batch.claim.release()

        assert balances(url) == stages(url) == []


# Writes that meet others: of other transactions, and of the same batch.


SECOND = "was already written to public.balance"


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
            ready.set()
            wait_until(lambda: somebody_waits(url))

    ready = Event()
    with ThreadPoolExecutor(1) as threads:
        changed = threads.submit(change)
        wait_until(lambda: ready.is_set() or changed.done())
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


def test_an_attempt_that_stands_behind_its_merge_is_refused_and_the_next_one_counts(
    work: Work,
) -> None:
    late, merged, goes_on = work.claim(), Event(), Event()
    work.write(late)
    late.before_ack(lambda _: merged.set() or goes_on.wait(PATIENCE_SECONDS))
    with ThreadPoolExecutor(2) as threads, Client(work.url) as other:
        stale = threads.submit(late.claim.ack)
        wait_until(lambda: merged.is_set() or stale.done())
        run(work.url, "update pgque.position_log set lease_until = now()")
        work.client = other
        new = work.claim()
        work.write(new)
        # The first one holds locks on the rows.
        acked = threads.submit(new.claim.ack)
        wait_until(lambda: acked.done() or somebody_waits(work.url))
        assert not acked.done()
        goes_on.set()
        with pytest.raises(LeaseLost):
            stale.result()
        acked.result()
        assert other.next_batch("orders", "revenue") is None

    assert balances(work.url) == [("x", 1)]


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
