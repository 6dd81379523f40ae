"""Refuses tables and views of the queue's schemas in the package's Python.

Python reaches the queue through functions, so that a table can change with its functions alone. Run
`make lint`, or `python build/check_python_sql.py`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from assemble import ROOT
from sql_rules import Finding

# It looks at schemas of earlier versions, which lack newer functions.
_EXCEPT = "installer.py"

_CREATED = re.compile(
    r"^ *create (?:or replace )?(?:unlogged )?(?:table|view) (?:if not exists )?(\w+\.\w+)",
    re.MULTILINE | re.IGNORECASE,
)
_USED = re.compile(
    r"\b(?:from|join|into|update|truncate|table|only|using)\s+(\w+\.\w+)(?![\w(])", re.IGNORECASE
)


def check(root: Path) -> list[Finding]:
    """Checks the modules of the package."""
    package = root / "pgque_dagster"
    tables = set[str]()
    for file in (root / "sql").glob("*/**/*.sql"):
        tables.update(name.lower() for name in _CREATED.findall(file.read_text()))
    return [
        Finding(
            file.relative_to(root),
            line,
            "table",
            f"{table} is a table or view. Call a function of the schema",
        )
        for file in sorted(package.rglob("*.py"))
        if file != package / _EXCEPT
        for line, table in _uses(file.read_text(), tables)
    ]


def _uses(text: str, tables: set[str]) -> Iterator[tuple[int, str]]:
    for match in _USED.finditer(text):
        if match[1].lower() in tables:
            yield text.count("\n", 0, match.start(1)) + 1, match[1].lower()


def main(root: Path = ROOT) -> int:
    """Prints one finding per line; returns 1 if there is any."""
    findings = check(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
