"""Measures contenders in turns: each one runs in every round, and the medians are compared."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """Something to measure. `cost` runs it once and returns the seconds per operation."""

    name: str
    cost: Callable[[], float]


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        what: what was measured.
        against: the rival or the limit.
        figure: the ratio, or the number if there is nothing to compare with.
        better: whether the figure should be at least or at most the target.
        target: the target; None for a line without one.
        detail: the absolute figures.
    """

    what: str
    against: str
    figure: float
    better: Literal[">=", "<="]
    target: float | None
    detail: str

    @property
    def reached(self) -> bool | None:
        """Whether the target was reached; None without a target."""
        if self.target is None:
            return None
        return self.figure >= self.target if self.better == ">=" else self.figure <= self.target


def timed(operation: Callable[[], object], times: int = 1) -> float:
    """Runs an operation this many times, and returns the seconds per operation."""
    start = time.perf_counter()
    for _ in range(times):
        operation()
    return (time.perf_counter() - start) / times


def medians(contenders: Sequence[Contender], rounds: int) -> dict[str, float]:
    """Measures all contenders in turns, after a warm-up round that does not count.

    Returns:
        The median cost of each contender, in seconds.
    """
    costs: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for contender in contenders:
            cost = contender.cost()
            if number:
                costs.setdefault(contender.name, []).append(cost)
    return {name: statistics.median(values) for name, values in costs.items()}


def to_markdown(results: Sequence[Result]) -> str:
    """Returns the results as a Markdown table."""
    return "\n".join(
        [
            "| what | against | figure | target | ours/theirs |",
            "|---|---|---:|---|---|",
            *(
                f"| {r.what} | {r.against} | {r.figure:.2f} | {_target(r)} | {r.detail} |"
                for r in results
            ),
            "",
        ]
    )


def _target(result: Result) -> str:
    if result.target is None:
        return ""
    missed = "" if result.reached else " **missed**"
    return f"{result.better} {result.target:g}{missed}"


def write_section(report: Path, name: str, table: str) -> None:
    """Replaces the text between the marks of a section in the report."""
    text = report.read_text()
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, found_start, rest = text.partition(start)
    _, found_end, tail = rest.partition(end)
    if not (found_start and found_end):
        raise LookupError(f"{report} has no section between {start.strip()} and {end.strip()}")
    report.write_text(f"{head}{start}\n{table}\n{end}{tail}")
