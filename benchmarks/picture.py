"""Draws the results: how far each figure is from its target.

`python -m benchmarks.picture` redraws the table in docs/benchmarks.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.measure import Result


def draw(results: Sequence[Result], path: Path) -> None:
    """Draws one bar per result. The target is at 1, and longer bars are better."""
    shown = [result for result in results if result.target]
    bars = [_margin(result) for result in shown]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(shown) + 1.2))
    colours = ["#2a9d8f" if result.reached else "#e76f51" for result in shown]
    axes.barh([result.what for result in shown], bars, color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.invert_yaxis()
    axes.set_xlabel("times better than the target")
    # Leaves room for the figures beside the longest bars.
    axes.set_xlim(right=2 * max(bars))
    axes.margins(y=0.01)
    for row, (result, bar) in enumerate(zip(shown, bars, strict=True)):
        axes.text(bar, row, f" {result.figure:.2f}", va="center", fontsize=8)
    axes.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def read_table(report: str) -> list[Result]:
    """Reads the results from the report, as `to_markdown` wrote them."""
    table = report.partition("<!-- results -->")[2].partition("<!-- end of results -->")[0]
    results = []
    for line in table.strip().splitlines()[2:]:
        what, against, figure, target, detail = (cell.strip() for cell in line.split("|")[1:-1])
        better, _, wanted = target.removesuffix(" **missed**").partition(" ")
        is_most: Literal[">=", "<="] = "<=" if better == "<=" else ">="
        least = float(wanted) if wanted else None
        results.append(Result(what, against, float(figure), is_most, least, detail))
    return results


def _margin(result: Result) -> float:
    assert result.target
    figure = max(result.figure, result.target / 64)
    return figure / result.target if result.better == ">=" else result.target / figure


if __name__ == "__main__":
    _docs = Path(__file__).parent.parent / "docs"
    draw(read_table((_docs / "benchmarks.md").read_text()), _docs / "images" / "benchmarks.png")
