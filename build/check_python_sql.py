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

# What is not behind a function yet. An entry without use is refused too.
ALLOWED = {
    ("client/queues.py", "pgque.addon"),
    ("client/queues.py", "qgres.queue"),
    ("client/installation.py", "pgque.config"),
    ("client/messages.py", "postgremq.queues"),
    ("client/peeking.py", "pgque.queue"),
    ("client/peeking.py", "pgque.tick"),
    ("client/serial.py", "qgres.queue"),
    # It looks at schemas of earlier versions, which lack newer functions.
    ("installer.py", "pgque.addon"),
}

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
    findings = []
    unused = set(ALLOWED) if root == ROOT else set[tuple[str, str]]()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        for line, table in _uses(file.read_text(), tables):
            unused.discard((name, table))
            if (name, table) not in ALLOWED:
                message = f"{table} is a table or view. Call a function of the schema"
                findings.append(Finding(file.relative_to(root), line, "table", message))
    for name, table in sorted(unused):
        message = f"{name} does not use {table}. Remove the entry"
        findings.append(Finding(Path("build/check_python_sql.py"), 1, "table", message))
    return findings


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
