"""Interleaved measuring: each rival gets a turn in every round, and medians are compared."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    """Something to measure. `rate` runs it once and returns operations a second."""

    name: str
    rate: Callable[[], float]


@dataclass(frozen=True)
class Ratio:
    """A contender's median rate, and what part of the limit's it is."""

    name: str
    limit: str
    rate: float
    ratio: float


def compare(limit: Contender, contenders: Sequence[Contender], *, rounds: int) -> list[Ratio]:
    """Measures all in turns.

    Args:
        limit: what the others are compared with.
        contenders: what to compare.
        rounds: how often each is measured; the first round warms up and does not count.

    Returns:
        The contenders' ratios of medians, the limit's own (1.0) first.
    """
    rates: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for contender in (limit, *contenders):
            rate = contender.rate()
            if number:
                rates.setdefault(contender.name, []).append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return [
        Ratio(name, limit.name, median, median / medians[limit.name])
        for name, median in medians.items()
    ]


def to_markdown(title: str, unit: str, ratios: Sequence[Ratio]) -> str:
    """Returns a Markdown table of one comparison."""
    lines = [
        f"### {title}",
        "",
        f"| what | {unit} a second, median | ratio to {ratios[0].limit} |",
        "|---|---:|---:|",
        *(f"| {ratio.name} | {ratio.rate:,.0f} | {ratio.ratio:.2f} |" for ratio in ratios),
        "",
    ]
    return "\n".join(lines)
