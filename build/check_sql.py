"""Checks the SQL files of the queue against the project's rules, without a database.

Run `make lint`, or `python build/check_sql.py`. The rules are in build/sql_rules.py.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from assemble import ADDON_PROLOGUE, ROOT, SourceError, read_manifest
from sql_rules import (
    ENGINE,
    Finding,
    Source,
    check_dynamic_sql,
    check_grants,
    check_revoked,
    check_routine,
)
from sql_source import SqlError, Statement, read_block, read_routine, read_statements

_UNPINNED_FILE = Path("build/unpinned.txt")
_PUBLIC_FILE = Path("build/public.txt")
_CREATED_SCHEMA = re.compile(r"^create schema (?:if not exists )?(\w+)", re.MULTILINE)


def check(root: Path) -> list[Finding]:
    """Checks all files of the manifest."""
    manifest = read_manifest(root)
    unpinned, findings = _read_reasons(root, _UNPINNED_FILE, "unpinned")
    public, more = _read_reasons(root, _PUBLIC_FILE, "public")
    findings += more
    created: set[str] = set()
    parts = [
        _sources(root, [*manifest.install, *manifest.uninstall], {}),
        *(
            _sources(root, [*ADDON_PROLOGUE, *entries], public)
            for entries in manifest.addons.values()
        ),
    ]
    last = {entries[-1] for entries in [manifest.install, *manifest.addons.values()]}
    for source in chain(*parts):
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
        if source.path.relative_to("sql").as_posix() in last:
            findings += check_revoked(source, statements)
    for name in sorted(unpinned.keys() - created):
        message = f"there is no {name} without a search_path. Remove the entry"
        findings.append(Finding(_UNPINNED_FILE, 1, "unpinned", message))
    return sorted(set(findings))


def _sources(root: Path, entries: list[str], public: Mapping[str, str]) -> list[Source]:
    """Reads the files of the engine or of an add-on, which create its schemas."""
    texts = {Path("sql", entry): (root / "sql" / entry).read_text() for entry in entries}
    schemas = [name for text in texts.values() for name in _CREATED_SCHEMA.findall(text)]
    return [Source(path, text, tuple(schemas) or ENGINE, public) for path, text in texts.items()]


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


def _read_reasons(root: Path, file: Path, rule: str) -> tuple[dict[str, str], list[Finding]]:
    """Reads the names that a rule leaves out: one name a line, then the reason; `#` comments."""
    lines = (root / file).read_text().splitlines()
    reasons = {}
    for line in lines:
        name, _, reason = line.partition("#")[0].strip().partition(" ")
        if name:
            reasons[name] = reason.strip()
    findings = [
        Finding(
            file, lines.index(name) + 1, rule, f"{name} has no reason. Write one after the name"
        )
        for name, reason in reasons.items()
        if not reason
    ]
    return reasons, findings


def _syntax_finding(source: Source, error: SqlError) -> Finding:
    message = f"PostgreSQL's parser says: {error}. Correct the text"
    return source.finding(error.line, "syntax", message)


def main(root: Path = ROOT) -> int:
    """Prints one finding per line; returns 1 if there is any."""
    try:
        findings = check(root)
    except SourceError as error:
        print(error)
        return 1
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
