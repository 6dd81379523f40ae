"""The demo's summary says what happened."""

from demo.books import LEDGERS, Account, Comparison, Mismatch
from demo.graphql import Run
from demo.report import Summary, mismatch_lines


def run(name: str, *, batch: int, attempt: int = 1, status: str = "SUCCESS") -> Run:
    tags = {
        "pgque/consumer": "branch_balances",
        "pgque/batch_id": str(batch),
        "pgque/attempt": str(attempt),
    }
    return Run(name, status, 1.0, 2.0, tags)


def comparison(*keys: int) -> Comparison:
    mismatches = tuple(Mismatch(key, Account(5, 1), Account(4, 2)) for key in keys)
    return Comparison(LEDGERS[0], 40, mismatches)


def summary(*runs: Run, killed: str | None = None, differs: tuple[int, ...] = ()) -> Summary:
    return Summary(
        **{"postings": 2995, "malformed": 5, "load_seconds": 10.0, "drained_seconds": 30.0},
        **{"dead_letters": 15, "purged": 15, "seconds": 99.5, "ui": "http://127.0.0.1:3000"},
        runs=runs,
        killed=killed,
        comparisons=[comparison(*differs)],
    )


def value(of: Summary, name: str) -> str:
    return next(line for line in of.lines() if line.startswith(name)).removeprefix(name).strip()


def test_events_rates_and_batches_are_counted() -> None:
    runs = (run("a", batch=1), run("b", batch=2, status="FAILURE"), run("c", batch=2, attempt=2))
    of = summary(*runs)
    assert value(of, "events sent") == "3,000 (5 of them malformed)"
    assert value(of, "events a second") == "300 sent"
    assert "100 consumed by 1 assets" in [line.strip() for line in of.lines()]
    assert value(of, "batches") == "2"  # whatever their attempts
    assert value(of, "runs") == "3: 2 succeeded, 1 failed"
    assert value(of, "second attempts") == "1"


def test_a_run_killed_on_purpose_is_no_failure() -> None:
    of = summary(run("a", batch=1, status="FAILURE"), run("b", batch=1, attempt=2), killed="a")
    assert value(of, "runs") == "2: 1 succeeded, 0 failed, 1 killed on purpose"


def test_mismatches_are_counted_and_named() -> None:
    of = summary(differs=(3, 8))
    assert of.mismatches == 2
    assert value(of, "branch balances") == "40 compared, 2 differ"
    assert mismatch_lines(of.comparisons)[0] == (
        "branch_balances: bid 3 has 5 from 1 postings in the bank, "
        "4 from 2 postings in Spark's output"
    )
    lines = mismatch_lines([comparison(*range(30))])
    assert len(lines) == 6
    assert lines[-1] == "branch_balances: and 25 more"
