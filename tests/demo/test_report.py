"""The demo's summary says what happened."""

from demo.books import Comparison, Sum
from demo.graphql import CheckResult, Run
from demo.report import Summary

EQUAL = CheckResult("pgbench_branches", "equals_source", True, "2 rows are equal at tick 9.")
DIFFERS = CheckResult("pgbench_tellers", "equals_source", False, "1 of 20 rows differ.")
SAME = Comparison("pgbench_branches", Sum(2, 50), Sum(2, 50))
OTHER = Comparison("pgbench_tellers", Sum(20, 50), Sum(20, 45))


def run(name: str, *, batch: int, status: str = "SUCCESS") -> Run:
    tags = {"pgque/consumer": "bank", "pgque/batch_id": str(batch), "pgque/attempt": "1"}
    return Run(name, status, 1.0, 2.0, tags)


def summary(*runs: Run, checks: tuple[CheckResult, ...] = (EQUAL,), other: bool = False) -> Summary:
    return Summary(
        load_seconds=30.4,
        seconds=59.6,
        ui="http://127.0.0.1:3000",
        runs=runs,
        killed="a",
        checks=checks,
        comparisons=[SAME, OTHER] if other else [SAME],
    )


def value(of: Summary, name: str) -> str:
    return next(line for line in of.lines() if line.startswith(name)).removeprefix(name).strip()


def test_a_run_killed_on_purpose_is_no_failure() -> None:
    runs = (run("a", batch=1, status="FAILURE"), run("b", batch=1), run("c", batch=2))
    of = summary(*runs)
    assert value(of, "runs") == "3: 2 succeeded, 0 failed, 1 killed on purpose"
    assert value(of, "batches") == "2"  # whatever their attempts
    assert value(of, "equals_source") == "1 of 1 checks passed"
    assert value(of, "pgbench_branches") == ("2 rows, sum 50 in the bank; 2 rows, sum 50 by DuckDB")
    assert of.failures == []


def test_what_differs_is_named() -> None:
    assert summary(checks=(EQUAL, DIFFERS)).failures == ["pgbench_tellers: 1 of 20 rows differ."]
    (failure,) = summary(other=True).failures
    assert failure == (
        "pgbench_tellers: the bank has Sum(rows=20, money=50), the replica Sum(rows=20, money=45)"
    )
