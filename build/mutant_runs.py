"""Runs the tests that concern each mutant, each in a process of its own.

A pytest plugin. It runs each test once as it is, which tells the functions that the test calls and
that it passes. Then each mutant takes its function's place in the template of the tests' databases,
and a forked process runs tests against it. What no test notices, the simulator runs with.
"""

import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from mutants import Mutant

# A test that waits for a lock for ever notices the mutant as well as one that fails.
_HANGING_SECONDS = 10  # and three times as long as the longest test took
HUNG = " (hung)"
_SIMULATOR_SECONDS = 30
_WITH_PREPARED = "select distinct database from pg_prepared_xacts where database like 't\\_%'"
_PREPARED = "select gid from pg_prepared_xacts where database = current_database()"
_CALLS = "select distinct funcname from pg_stat_user_functions where schemaname = 'pgque'"
_END_SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where datname like 't\\_%'"


class MutantRuns:
    """The plugin.

    Args:
        mutants: What to run, in order.
        budget: Seconds of tests, as they took unbroken, for each mutant.
        steps: Of the simulator for each mutant that no test notices.
        report: Where each result is appended as a line.
    """

    def __init__(
        self, mutants: "list[Mutant]", budget: float, steps: int, report: Path | None
    ) -> None:
        self.survivors: list[Mutant] = []
        self._mutants = mutants
        self._budget = budget
        self._steps = steps
        self._report = report
        self._callers: dict[str, list[tuple[float, pytest.Item]]] = defaultdict(list)
        # How many mutants each test killed. It may well kill the function's next one.
        self._kills: Counter[str] = Counter()
        self._called: set[str] = set()
        self._server: Any = None
        self._template = ""
        self._simulated: set[str] | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs each test once, then the mutants."""
        items = [item for item in session.items if "database_url" in item.fixturenames]  # type: ignore[attr-defined]
        conftest = sys.modules["tests.conftest"]
        self._watch(conftest)
        for item in items:
            self._record(item)
        killed = 0
        for number, mutant in enumerate(self._mutants, 1):
            result = self._try(mutant, conftest, number)
            killed += result.startswith("killed")
            self._say(f"{number}/{len(self._mutants)} {result}: {mutant}")
        self._say(f"{len(self._mutants)} mutants: {killed} killed, {len(self.survivors)} survived")
        return True

    def _watch(self, conftest: Any) -> None:
        """Notes the functions that were called in a database before it is dropped."""
        new_server, install, execute = conftest.new_server, conftest.install, conftest.execute

        @contextmanager
        def tracking() -> Iterator[Any]:
            with new_server() as self._server:
                _execute(self._server.url, "alter system set track_functions = 'all'")
                _execute(self._server.url, "select pg_reload_conf()")
                yield self._server

        def installing(url: str) -> None:
            install(url)
            self._template = url

        def watching(connection: Any, statement: str) -> None:
            if statement.startswith("drop database t_"):
                name = statement.split()[2]
                with (
                    suppress(psycopg.OperationalError),  # a test of restoring has dropped it
                    psycopg.connect(self._server.database_url(name), autocommit=True) as db,
                ):
                    self._called |= {name for (name,) in db.execute(_CALLS)}
            execute(connection, statement)

        conftest.new_server, conftest.install, conftest.execute = tracking, installing, watching

    def _record(self, item: pytest.Item) -> None:
        self._called = set()
        item.session._setupstate.teardown_exact(item)
        begun = time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=self._other(item))
        spent = time.monotonic() - begun
        # One that fails unbroken would kill every mutant.
        if all(report.passed for report in reports):
            for name in self._called:
                self._callers[name].append((spent, item))
        else:
            self._say(f"left out, it does not pass as it is: {item.nodeid}")

    def _try(self, mutant: "Mutant", conftest: Any, number: int) -> str:
        chosen: list[tuple[float, pytest.Item]] = []
        spent = 0.0
        for cost, item in sorted(self._callers[mutant.function], key=self._price):
            if chosen and spent + cost > self._budget:
                break
            chosen.append((cost, item))
            spent += cost
        if not chosen:
            self.survivors.append(mutant)
            return "not called by any test"
        limit = _HANGING_SECONDS + 3 * max(cost for cost, _ in chosen)
        try:
            _execute(self._template, mutant.sql)
        except psycopg.Error:
            return "killed when installed"
        try:
            items = [item for _, item in chosen]
            failed = self._fork(self._test(items, conftest, number), limit)
        finally:
            _execute(self._template, mutant.original)
        if failed is None:
            if self._steps and (found := self._simulate(mutant, f"t_simulated_{number}")):
                return f"killed by the simulator: {found}"
            self.survivors.append(mutant)
            return f"SURVIVED {len(chosen)} tests"
        self._kills[failed.removesuffix(HUNG)] += 1
        return f"killed by {failed}"

    def _price(self, test: tuple[float, pytest.Item]) -> float:
        cost, item = test
        return cost / (1 + 10 * self._kills[item.nodeid])

    def _simulate(self, mutant: "Mutant", name: str) -> str:
        """Runs the simulator, if it calls the function; returns how it failed, if it did."""
        from tests.simulator.faults import smaller

        if self._simulated is None:
            self._simulated = self._called_by_simulator()
        if mutant.function not in self._simulated:
            return ""
        changed = smaller(mutant.sql).encode()
        url = self._new_database(name, "t_simulator", changed)
        found = self._fork(self._simulation(url, changed), _SIMULATOR_SECONDS)
        self._drop(name)
        return found or ""

    def _called_by_simulator(self) -> set[str]:
        from tests.simulator.faults import install_sql

        self._new_database("t_simulator", "template1", install_sql())
        url = self._new_database("t_calls", "t_simulator", b"select 1")
        self._fork(self._simulation(url, b""), _SIMULATOR_SECONDS)
        with psycopg.connect(url) as db:
            called = {name for (name,) in db.execute(_CALLS)}
        self._drop("t_calls")
        return called

    def _simulation(self, url: str, changed: bytes) -> Callable[..., bool]:
        from tests.simulator.faults import install_sql
        from tests.simulator.run import program, simulate

        def run(say: Callable[[str], None]) -> bool:
            failure = simulate(url, program(1, self._steps), install_sql() + changed).failure
            say(" ".join(str(failure).split())[:80])
            return failure is None

        return run

    def _roll_back(self, database: str) -> None:
        url = self._server.database_url(database)
        with psycopg.connect(url, autocommit=True) as db:
            for (left,) in db.execute(_PREPARED).fetchall():
                db.execute(f"rollback prepared '{left}'".encode())

    def _drop(self, name: str) -> None:
        self._roll_back(name)
        _execute(self._server.url, f"drop database {name} with (force)")

    def _new_database(self, name: str, template: str, sql: bytes) -> str:
        _execute(self._server.url, f"create database {name} template {template}")
        url: str = self._server.database_url(name)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(sql)
        return url

    def _test(self, items: list[pytest.Item], conftest: Any, number: int) -> Callable[..., bool]:
        def run(say: Callable[[str], None]) -> bool:
            # The session's connection stays the parent's, who goes on if this process is killed.
            conftest.execute = lambda _, statement: _execute(self._server.url, statement)
            conftest._numbers = iter(range(number * 100_000, (number + 1) * 100_000))
            for item in items:
                say(item.nodeid)
                item._initrequest()  # type: ignore[attr-defined]
                item.session._setupstate.teardown_exact(item)
                reports = runtestprotocol(item, log=False, nextitem=self._other(item))
                if not all(report.passed for report in reports):
                    return False
            return True

        return run

    def _fork(self, run: Callable[..., bool], limit: float) -> str | None:
        """Runs a function in a process of its own.

        Args:
            run: says by its argument what it does, and returns whether all was well.
            limit: seconds without a word after which it hangs.

        Returns:
            What it said last, unless all was well.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgrp()
            os.close(reading)
            well = False
            try:
                well = run(lambda word: os.write(writing, f"{word}\n".encode()))
            finally:
                os._exit(0 if well else 1)
        os.close(writing)
        os.set_blocking(reading, False)
        last, status = "", None
        deadline = time.monotonic() + limit
        while status is None and time.monotonic() < deadline:
            done, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
            with suppress(BlockingIOError):
                if said := os.read(reading, 65536).decode().splitlines():
                    last = said[-1]
                    deadline = time.monotonic() + limit
            time.sleep(0.02)
        os.close(reading)
        if status is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            # A loop without end goes on in the server without its client.
            _execute(self._server.url, _END_SESSIONS)
            with psycopg.connect(self._server.url) as db:
                left = db.execute(_WITH_PREPARED).fetchall()
            for (database,) in left:
                self._roll_back(database)
        return None if status == 0 else last + (HUNG if status is None else "")

    def _other(self, item: pytest.Item) -> pytest.Item:
        """Any other test, to name as the next: this one's fixtures end, the session's stay."""
        return next(other for other in item.session.items if other is not item)

    def _say(self, line: str) -> None:
        print(line, flush=True)
        if self._report:
            with self._report.open("a") as file:
                file.write(line + "\n")


def _execute(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(sql.encode())
