"""Whatever the order of what everybody does, each consumer gets each committed event once."""

import secrets

import psycopg
import pytest

from tests.simulator.faults import FAULTS, install_sql
from tests.simulator.run import Report, program, simulate


def report_of(url: str, seed: int, steps: int, fault: str | None = None) -> Report:
    """Runs a seed; `make simulate` with the same numbers runs it again, and shortens it."""
    sql = install_sql(fault)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(sql)
    report = simulate(url, program(seed, steps), sql)
    print(f"seed {seed}: {steps} steps, {report.events} events, {report.failure}")
    return report


def run(url: str, seed: int, steps: int) -> None:
    report = report_of(url, seed, steps)
    assert report.failure is None, f"seed {seed}: {report.failure}"
    assert report.events >= steps / 20


def test_each_consumer_gets_each_committed_event_once(database_url: str) -> None:
    run(database_url, seed=1, steps=2000)


def test_each_fault_is_put_into_the_sql_of_today() -> None:
    assert len({install_sql(name) for name in (None, *FAULTS)}) == 1 + len(FAULTS)


@pytest.mark.parametrize("name", ["other_queues", "rotation_without_look"])
def test_a_fault_of_the_engine_is_found(database_url: str, name: str) -> None:
    assert report_of(database_url, 1, 20_000, name).failure


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_the_engine_is_found(database_url: str, name: str) -> None:
    assert report_of(database_url, 1, 20_000, name).failure


@pytest.mark.slow
def test_each_consumer_gets_each_committed_event_once_in_an_order_not_seen_before(
    database_url: str,
) -> None:
    run(database_url, secrets.randbelow(2**32), steps=2000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_each_consumer_gets_each_committed_event_once_in_long_runs(
    database_url: str, seed: int
) -> None:
    run(database_url, seed, steps=20_000)
