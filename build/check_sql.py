"""Checks the SQL files of the queue against the project's rules, without a database.

Run `make lint`, or `python build/check_sql.py`. The rules are in build/sql_rules.py.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from assemble import ROOT, ManifestError, read_manifest
from sql_rules import (
    Finding,
    Source,
    check_dynamic_sql,
    check_grants,
    check_revoked,
    check_routine,
)
from sql_source import SqlError, Statement, read_block, read_routine, read_statements

_UNPINNED_FILE = Path("build/unpinned.txt")


def check(root: Path) -> list[Finding]:
    """Checks all files of the manifest."""
    manifest = read_manifest(root)
    unpinned, findings = _read_unpinned(root)
    created: set[str] = set()
    for entry in [*manifest.install, *manifest.uninstall]:
        path = Path("sql", entry)
        source = Source(path, (root / path).read_text())
        try:
            statements = read_statements(source.text)
        except SqlError as error:
            findings.append(_syntax_finding(source, error))
            continue
        created.update(_unpinned_names(statements))
        for statement in statements:
            try:
                findings += list(_check_statement(source, statement, unpinned))
            except SqlError as error:
                findings.append(_syntax_finding(source, error))
        if entry == manifest.install[-1]:
            findings += check_revoked(source, statements)
    for name in sorted(unpinned.keys() - created):
        message = f"there is no {name} without a search_path. Remove the entry"
        findings.append(Finding(_UNPINNED_FILE, 1, "unpinned", message))
    return sorted(set(findings))


def _check_statement(
    source: Source, statement: Statement, unpinned: Mapping[str, str]
) -> Iterator[Finding]:
    yield from check_grants(source, statement)
    if statement.kind == "CreateFunctionStmt":
        yield from check_routine(source, read_routine(statement), unpinned)
    if statement.kind == "DoStmt":
        yield from check_dynamic_sql(source, read_block(statement))


def _unpinned_names(statements: list[Statement]) -> Iterator[str]:
    for statement in statements:
        if statement.kind == "CreateFunctionStmt":
            routine = read_routine(statement)
            if routine.search_path is None:
                yield routine.full_name


def _read_unpinned(root: Path) -> tuple[dict[str, str], list[Finding]]:
    """Reads the routines that may run without their own search_path, with the reasons."""
    unpinned = {}
    findings = []
    for number, line in enumerate((root / _UNPINNED_FILE).read_text().splitlines(), 1):
        name, _, reason = line.partition("#")[0].strip().partition(" ")
        if not name:
            continue
        unpinned[name] = reason.strip()
        if not unpinned[name]:
            message = f"{name} has no reason. Write one after the name"
            findings.append(Finding(_UNPINNED_FILE, number, "unpinned", message))
    return unpinned, findings


def _syntax_finding(source: Source, error: SqlError) -> Finding:
    message = f"PostgreSQL's parser says: {error}. Correct the text"
    return source.finding(error.line, "syntax", message)


def main(root: Path = ROOT) -> int:
    """Prints one finding per line; returns 1 if there is any."""
    try:
        findings = check(root)
    except ManifestError as error:
        print(error)
        return 1
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
