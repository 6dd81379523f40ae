"""Breaks the engine's functions in small ways, one by one, and checks whether a test notices.

Run `make mutants`: 2,000 mutants of sql/engine and sql/api take hours. Each is a function with one
guard, lock, comparison or condition removed or turned round. Tests that call the function run
against it, the quickest first, until one fails; then the simulator does. A mutant that nothing
notices survives: it needs a test, or the code that it broke is not needed, or both forms mean the
same.

    make mutants ARGS="--only rotation --only maint_rotate_tables_step1"
    make mutants ARGS="--sample 20 --report build/mutants.txt"
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pgparse
import pytest
from mutant_runs import MutantRuns
from sql_source import Routine, read_routine, read_statements

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("sql/engine", "sql/api")
TESTS = ("tests/engine", "tests/security")

# What is looked for in a body, by what it becomes, with the name that a report gives it. The order
# matters to nobody; each match of each pattern is a mutant.
_CHANGES: tuple[tuple[str, str, str], ...] = (
    ("call removed", r"\bperform\s[^;]+;", "null;"),
    ("lock removed", r"\block table\s[^;]+;", "null;"),
    ("row lock removed", r"\bfor (?:no key )?(?:update|share)(?: of \w+)?(?: skip locked)?", ""),
    ("error removed", r"\braise exception\s[^;]+;", "null;"),
    ("return removed", r"\breturn;", "null;"),
    ("condition removed", r"\b(?:and|or) (?!.*\bbetween\b)(?P<kept>[^\n]+)$", ""),
    ("always", r"\bif (?P<condition>[^;\n]+) then\b", "if true then"),
    ("never", r"\bif (?P<condition>[^;\n]+) then\b", "if false then"),
    ("exit removed", r"\bexit when [^;]+;", "null;"),
    ("< for <=", r"(?<=\s)<=(?=\s)", "<"),
    ("<= for <", r"(?<=\s)<(?=\s)", "<="),
    ("> for >=", r"(?<=\s)>=(?=\s)", ">"),
    (">= for >", r"(?<=\s)>(?=\s)", ">="),
    ("<> for =", r"(?<=\s)=(?=\s)", "<>"),
    ("= for <>", r"(?<=\s)<>(?=\s)", "="),
    ("is null for is not null", r"\bis not null\b", "is null"),
    ("is not null for is null", r"\bis null\b", "is not null"),
    ("turned round", r"\bis distinct from\b", "is not distinct from"),
    ("turned round", r"\bis not distinct from\b", "is distinct from"),
    ("turned round", r"\bnot exists\b", "exists"),
    ("turned round", r"(?<!not )\bexists\b", "not exists"),
    ("not removed", r"\bnot (?=\w+\.|pgque|pg_|v_|i_)", ""),
    ("+ 0 for + 1", r"\+ 1\b", "+ 0"),
    ("- 0 for - 1", r"- 1\b", "- 0"),
    ("least for greatest", r"\bgreatest\(", "least("),
    ("greatest for least", r"\bleast\(", "greatest("),
    ("true for false", r"\bfalse\b(?! then)", "true"),
    ("false for true", r"\btrue\b(?! then)", "false"),
    ("other end first", r"\bdesc\b", "asc"),
)
_QUOTED = re.compile(r"'(?:[^']|'')*'|--[^\n]*")


@dataclass(frozen=True)
class Mutant:
    """One function with one change.

    Attributes:
        file: Path of the function's file below the project.
        line: Line of the change in that file.
        column: Of the change in that line, from 1.
        function: The function's name, without the schema.
        change: What was done.
        before: The text that was changed.
        sql: The CREATE OR REPLACE statement of the changed function.
        original: The same of the function as it is.
    """

    file: str
    line: int
    column: int
    function: str
    change: str
    before: str
    sql: str
    original: str

    def __str__(self) -> str:
        text = " ".join(self.before.split())
        return f"{self.file}:{self.line}:{self.column} {self.function}: {self.change}: {text[:90]}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file's functions that PostgreSQL's parser takes."""
    for statement in read_statements(path.read_text()):
        if statement.kind != "CreateFunctionStmt":
            continue
        routine = read_routine(statement)
        if routine.replaces and routine.body:
            yield from _mutants(path, routine)


def _mutants(path: Path, routine: Routine) -> Iterator[Mutant]:
    original = routine.statement.text
    offset = original.index(routine.body)
    # Literals are blanked, so that nothing in them matches; positions stay.
    blank = _QUOTED.sub(lambda match: "'" + " " * (len(match[0]) - 2) + "'", routine.body)
    for change, pattern, by in _CHANGES:
        for match in re.finditer(pattern, blank, re.MULTILINE):
            text = _replacement(match, by)
            if text is None:
                continue
            start, end = offset + match.start(), offset + match.end()
            sql = original[:start] + text + original[end:]
            if not _parses(sql):
                continue
            yield Mutant(
                file=path.relative_to(ROOT).as_posix(),
                line=routine.line + original[:start].count("\n"),
                column=start - original.rfind("\n", 0, start),
                function=routine.name,
                change=change,
                before=original[start:end],
                sql=sql,
                original=original,
            )


def _replacement(match: re.Match[str], by: str) -> str | None:
    """The text that takes the match's place; None where nothing can be taken out alone."""
    kept = match.groupdict().get("kept")
    if kept is None:
        return by
    end = re.search(r"(?: then| loop)?;?$", kept)
    assert end is not None
    condition = kept[: end.start()]
    closing = condition.count(")") - condition.count("(")
    if closing < 0 or not condition.endswith(")" * closing):
        return None
    return ")" * closing + kept[end.start() :]


def _parses(sql: str) -> bool:
    try:
        pgparse.parse(sql)
        if "language plpgsql" in sql:
            read_routine(read_statements(sql)[0]).plpgsql  # noqa: B018 - parsed when first read
    except Exception:
        return False
    return True


def main() -> int:
    """Runs the chosen mutants; returns 1 when one survives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="this file or function")
    parser.add_argument("--sample", type=int, help="so many of them, at random but the same ones")
    parser.add_argument("--part", default="0/1", help="part/parts, to run several at once")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for each mutant")
    parser.add_argument(
        "--steps", type=int, default=2000, help="of the simulator, where no test fails"
    )
    parser.add_argument("--report", type=Path, help="file of results: what is in it is left out")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="where the tests are")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()

    found = [
        mutant
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.sql"))
        for mutant in mutants_of(path)
        if not options.only or {path.stem, mutant.function} & set(options.only)
    ]
    if options.sample:
        found = random.Random(0).sample(found, min(options.sample, len(found)))
    part, parts = map(int, options.part.split("/"))
    found = found[part::parts]
    if options.report and options.report.exists():
        report = options.report.read_text()
        found = [mutant for mutant in found if f": {mutant}\n" not in report]
    if options.list:
        print(*found, f"{len(found)} mutants", sep="\n")
        return 0
    runs = MutantRuns(found, options.budget, options.steps, options.report)
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options.tests], plugins=[runs]
    )
    return int(code) or (1 if runs.survivors else 0)


if __name__ == "__main__":
    sys.exit(main())
