"""The summary at the end, and the differences if there are any."""

from collections.abc import Sequence
from dataclasses import dataclass

from .books import Comparison
from .graphql import Run

_SHOWN_MISMATCHES = 5


@dataclass(frozen=True)
class Summary:
    """What the demo did and found.

    Attributes:
        postings: the number of events that the bank sent.
        malformed: the number of malformed events that the demo sent.
        load_seconds: the duration of the load.
        drained_seconds: from the bank's first event until the last batch was acked.
        runs: all runs that worked on batches.
        killed: the id of the run whose process the demo killed.
        dead_letters: the number of dead letters before they were purged.
        purged: how many of these were purged.
        comparisons: one per ledger.
        seconds: the duration of the whole demo.
        ui: the address of Dagster's UI while it ran.
    """

    postings: int
    malformed: int
    load_seconds: float
    drained_seconds: float
    runs: Sequence[Run]
    killed: str | None
    dead_letters: int
    purged: int
    comparisons: Sequence[Comparison]
    seconds: float
    ui: str

    @property
    def mismatches(self) -> int:
        """The number of accounts whose balances differ between the bank and Spark."""
        return sum(len(comparison.mismatches) for comparison in self.comparisons)

    def lines(self) -> list[str]:
        """Returns the lines of the table."""
        sent = self.postings + self.malformed
        assets = len(self.comparisons)
        consumed = sent * assets / self.drained_seconds
        rows = [
            ("events sent", f"{sent:,} ({self.malformed} of them malformed)"),
            ("events a second", f"{sent / self.load_seconds:,.0f} sent"),
            ("", f"{consumed:,.0f} consumed by {assets} assets"),
            ("batches", f"{len({run.batch for run in self.runs}):,}"),
            ("runs", _runs(self.runs, self.killed)),
            ("second attempts", f"{sum(run.attempt > 1 for run in self.runs)}"),
            ("dead letters", f"{self.dead_letters} found, {self.purged} purged"),
            *((c.ledger.asset.replace("_", " "), _compared(c)) for c in self.comparisons),
            ("mismatches", f"{self.mismatches}"),
            ("seconds", f"{self.seconds:.0f}"),
            ("Dagster UI", f"{self.ui} (while it ran)"),
        ]
        width = max(len(name) for name, _ in rows)
        rule = "-" * (width + 2 + max(len(value) for _, value in rows))
        return [rule, *(f"{name.ljust(width)}  {value}" for name, value in rows), rule]


def mismatch_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Returns a line for each account that differs, at most a few per ledger."""
    lines = []
    for comparison in comparisons:
        for mismatch in comparison.mismatches[:_SHOWN_MISMATCHES]:
            booked, derived = mismatch.booked, mismatch.derived
            lines.append(
                f"{comparison.ledger.asset}: {comparison.ledger.key} {mismatch.key} has "
                f"{booked.balance} from {booked.postings} postings in the bank, "
                f"{derived.balance} from {derived.postings} postings in Spark's output"
            )
        more = len(comparison.mismatches) - _SHOWN_MISMATCHES
        if more > 0:
            lines.append(f"{comparison.ledger.asset}: and {more} more")
    return lines


def _runs(runs: Sequence[Run], killed: str | None) -> str:
    succeeded = sum(run.status == "SUCCESS" for run in runs)
    failed = sum(run.status != "SUCCESS" and run.id != killed for run in runs)
    text = f"{len(runs)}: {succeeded} succeeded, {failed} failed"
    return text + (", 1 killed on purpose" if killed else "")


def _compared(comparison: Comparison) -> str:
    return f"{comparison.accounts:,} compared, {len(comparison.mismatches)} differ"
