"""Links, anchors and names of pages lead somewhere, in the pages and in the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SCHEME = re.compile(r"[a-z]+:")
_PAGE_IN_CODE = r"docs/[a-z0-9/_-]+\.md(#[A-Za-z0-9_-]+)?"


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]


def code() -> list[Path]:
    folders = ("pgque_dagster", "sql", "tests", "build", "demo", "harness", "benchmarks", "deploy")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.suffix in (".py", ".sql", ".yaml")]


def anchor(heading: str) -> str:
    """As GitHub derives it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = _BLOCK.sub("", page.read_text())
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def leads_nowhere(page: Path, name: str) -> bool:
    """Whether there is no file NAME, or no such heading in it."""
    path, _, heading = name.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(heading) and target.suffix == ".md" and heading not in anchors(target)


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages()
        for link in _LINK.findall(_BLOCK.sub("", page.read_text()))
        if not _SCHEME.match(link) and leads_nowhere(page, link)
    ]
    assert broken == []


def test_every_page_that_the_code_names_exists() -> None:
    broken = [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in code()
        for found in re.finditer(_PAGE_IN_CODE, file.read_text())
        if leads_nowhere(ROOT / "README.md", found[0])
    ]
    assert broken == []


def test_the_runbook_has_every_error_alert_and_check() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    codes = re.findall(r'"(PQ\d{3})"', (ROOT / "pgque_dagster/client/errors.py").read_text())
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yaml").read_text())
    checks = re.findall(
        r"'(\w+_(?:health|running|backlog|database|rotation))'",
        (ROOT / "sql/ops/health.sql").read_text()
        + (ROOT / "sql/ops/database_health.sql").read_text(),
    )
    assert codes
    assert alerts
    assert checks
    missing = {name for name in (*codes, *alerts, *checks) if name not in runbook}
    assert missing == set()


@pytest.mark.parametrize("page", ["compare.md", "scaling.md"])
def test_figures_that_a_page_quotes_are_those_of_the_benchmarks(page: str) -> None:
    measured = "".join(
        path.read_text().replace(",", "")
        for path in (
            ROOT / "docs/benchmarks.md",
            ROOT / "docs/latency.md",
            ROOT / "docs/decisions/0012-message-states.md",
        )
    )
    chapters = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    (quoting,) = (each for each in chapters if each.startswith(("Figures", "Processor")))
    figures = re.findall(r"\b\d+\.\d+\b|\b\d{1,3}(?:,\d{3})+\b", quoting)
    assert figures
    assert [each for each in figures if each.replace(",", "") not in measured] == []


def words(page: Path) -> int:
    """Its words, without comments and the tables that benchmarks write."""
    text = re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_pages_stay_short() -> None:
    generated = {ROOT / "CHANGELOG.md", ROOT / "docs/reference.md", ROOT / "docs/cli.md"}
    assert words(ROOT / "docs/architecture.md") <= 1650
    assert sum(words(page) for page in set(pages()) - generated) <= 36_000
