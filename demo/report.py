"""The summary at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.graphql import CheckResult, Run

from .books import Comparison


@dataclass(frozen=True)
class Summary:
    """What the demo did and found.

    Attributes:
        load_seconds: how long the bank was open.
        runs: all runs that worked on batches.
        killed: the id of the run whose process the demo killed.
        checks: the results of the checks that compare each table with its replica.
        comparisons: one for each table.
        seconds: the duration of the whole demo.
        ui: the address of Dagster's UI while it ran.
    """

    load_seconds: float
    runs: Sequence[Run]
    killed: str
    checks: Sequence[CheckResult]
    comparisons: Sequence[Comparison]
    seconds: float
    ui: str

    @property
    def failures(self) -> list[str]:
        """What differs between the bank and the replicas."""
        return [
            *(f"{each.asset}: {each.description}" for each in self.checks if not each.passed),
            *(
                f"{each.table}: the bank has {each.bank}, the replica {each.replica}"
                for each in self.comparisons
                if not each.is_equal
            ),
        ]

    def lines(self) -> list[str]:
        """Returns the lines of the table."""
        passed = sum(each.passed for each in self.checks)
        rows = [
            ("bank was open", f"{self.load_seconds:.0f} s"),
            ("batches", f"{len({run.batch for run in self.runs}):,}"),
            ("runs", _runs(self.runs, self.killed)),
            ("equals_source", f"{passed} of {len(self.checks)} checks passed"),
            *(
                (each.table, f"{each.bank} in the bank; {each.replica} by DuckDB")
                for each in self.comparisons
            ),
            ("seconds", f"{self.seconds:.0f}"),
            ("Dagster UI", f"{self.ui} (while it ran)"),
        ]
        width = max(len(name) for name, _ in rows)
        rule = "-" * (width + 2 + max(len(value) for _, value in rows))
        return [rule, *(f"{name.ljust(width)}  {value}" for name, value in rows), rule]


def _runs(runs: Sequence[Run], killed: str) -> str:
    succeeded = sum(run.status == "SUCCESS" for run in runs)
    failed = sum(run.status != "SUCCESS" and run.id != killed for run in runs)
    return f"{len(runs)}: {succeeded} succeeded, {failed} failed, 1 killed on purpose"
