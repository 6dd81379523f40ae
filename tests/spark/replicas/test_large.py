"""A large table is copied beside writers, by runs that are killed, in short transactions."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

import duckdb
import psycopg
import pytest

from tests.programs.signals import ROOT
from tests.support.replicas.replication import (
    DeltaReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
)
from tests.support.runner.waiting import in_threads

ROWS, KILLS = 400_000, 5
TABLE = f"""
create table t (id bigint primary key, v text, n numeric(12, 2));
insert into t select n, repeat(md5(n::text), 3), n / 4.0 from generate_series(1, {ROWS}) n;
"""
_CHANGES = (
    "update t set n = n + 1 where id = {one}",
    "update t set v = repeat(v, 2) where id between {one} and {one} + 3",
    "update t set id = id + 10000000 where id = {one}",
    "delete from t where id = {one}",
    "insert into t values ({one} + 20000000, 'new', 1) on conflict do nothing",
)
_COLUMNS = "id || ':' || v || ':' || n"
# Of sessions of the copy; the program's own queries are short.
_OLDEST = (
    "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)"
    " from pg_stat_activity where backend_type = 'client backend' and backend_xmin is not null"
    " and datname = current_database()"
)


class Watched:
    """Writers of a table, with the age of the oldest transaction."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.oldest, self.changes = 0.0, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with in_threads(self._write, self._watch, stop=self._stop.set):
            yield

    def _write(self) -> None:
        chance = random.Random(1)
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._stop.wait(0.005):
                statement = chance.choice(_CHANGES).format(one=chance.randrange(ROWS))
                with suppress(psycopg.errors.UniqueViolation):
                    db.execute(statement.encode())
                    self.changes += 1

    def _watch(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self._stop.wait(0.2):
                ((age,),) = db.execute(_OLDEST.encode()).fetchall()
                self.oldest = max(self.oldest, float(age))


def copies(replication: Replication) -> int:
    """How many tables are copied."""
    with replication.connect() as db:
        return len(db.execute("select from pgque.replica_table").fetchall())


def has_read(replication: Replication) -> int:
    """How many rows of the table were read, by anybody and without its index."""
    with replication.connect() as db:
        found = db.execute("select seq_tup_read from pg_stat_user_tables where relname = 't'")
        return int(found.fetchall()[0][0])


@contextmanager
def copying(replication: Replication, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    if isinstance(replication, LakeReplication):
        kind = "delta" if isinstance(replication, DeltaReplication) else "iceberg"
        folder = str(replication.folder)
    else:
        kind, folder = "postgres", str(replication.target.url)
    place = [kind, replication.url, folder, "public.t"]
    command = [sys.executable, "-m", "tests.programs.copying", *place]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        process.wait()


def records(replication: Replication) -> int:
    """How many records of parts there are."""
    if isinstance(replication, LakeReplication):
        return len(list(replication.folder.rglob("_pgque/copy-*")))
    assert isinstance(replication, PostgresReplication)
    query = "select relname::text from pg_class where relname ~ '^__pgque.*_parts$'"
    return sum(len(replication.there(f"table {name}")) for (name,) in replication.there(query))


def wait_for_records(replication: Replication, process: subprocess.Popen[bytes], more: int) -> None:
    """Waits for some parts, or the end of the copy."""
    before = records(replication)
    while records(replication) < before + more and not copies(replication):
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_a_large_table_is_copied_beside_writers_by_runs_that_are_killed(
    replication: Replication, tmp_path: Path
) -> None:
    replication.sql(TABLE)
    replication.sql("analyze t")
    replication.capture("public.t")
    before, watched, log = has_read(replication), Watched(replication.url), tmp_path / "log"
    chance = random.Random(2)
    with watched.running():
        for number in range(KILLS + 1):
            with copying(replication, log) as process:
                while number == KILLS and not copies(replication):
                    assert process.poll() is None, log.read_text()[-5000:]
                    time.sleep(0.2)
                if number < KILLS:
                    wait_for_records(replication, process, chance.randint(2, 4))
                    time.sleep(chance.random())
        read_twice = has_read(replication) - before - ROWS
    replication.catch_up()
    with psycopg.connect(replication.url) as db:
        query = f"select count(*), md5(string_agg({_COLUMNS}, ',' order by id)) from t"
        wanted = db.execute(query.encode()).fetchall()
    if isinstance(replication, PostgresReplication):
        assert replication.there(query) == wanted
    else:
        assert isinstance(replication, LakeReplication)
        replica = replication.arrow("public.t")  # noqa: F841 -- the query reads it
        assert duckdb.sql(query.replace("from t", "from replica")).fetchall() == wanted
    assert replication.verify().is_equal
    print(f"{read_twice=} oldest={watched.oldest:.1f} s changes={watched.changes}")
    assert watched.changes > 100
    assert watched.oldest < 120
    assert read_twice < 0.5 * ROWS
