"""What PgQue has is here under the same names, except what docs/differences.md lists."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.queues.sql import Connection

API = Path(__file__).with_name("pgque_api.txt")
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
SECTION = "## Signatures"

_FUNCTION = re.compile(
    r"(?P<signature>(?P<name>\w+)\(.*\) -> .*?)(?: -- execute: (?P<roles>[\w, ]+))?"
)
_RELATION = re.compile(r"(?P<name>\w+): (?P<columns>.+)")

FUNCTIONS_HERE = """
select format('%s(%s) -> %s', p.proname, pg_get_function_arguments(p.oid),
              coalesce(pg_get_function_result(p.oid), '(procedure)')),
       array(select r from unnest('{pgque_reader, pgque_writer, pgque_admin}'::text[]) r
             where has_function_privilege(r, p.oid, 'execute'))
from pg_proc p
where p.pronamespace = 'pgque'::regnamespace
"""
COLUMNS_HERE = """
select format('%s.%s', c.relname, a.attname), format_type(a.atttypid, a.atttypmod)
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'pgque'::regnamespace
"""


@dataclass(frozen=True)
class Function:
    """A function of PgQue: its name, the whole signature, and the roles that may call it."""

    name: str
    signature: str
    roles: frozenset[str]


def functions() -> list[Function]:
    lines = API.read_text().splitlines()
    return [
        Function(found["name"], found["signature"], frozenset((found["roles"] or "").split(", ")))
        for found in map(_FUNCTION.fullmatch, lines)
        if found
    ]


def columns() -> list[tuple[str, str]]:
    """Each column as table.column, with its type."""
    return [
        (f"{found['name']}.{column.split(' ', 1)[0]}", column.split(" ", 1)[1])
        for found in map(_RELATION.fullmatch, API.read_text().splitlines())
        if found
        for column in found["columns"].split(", ")
    ]


def documented(pattern: str) -> set[str]:
    """What the first cells of the page's table of signatures name."""
    section = PAGE.read_text().split(f"{SECTION}\n")[1].split("\n## ")[0]
    return {
        name
        for line in section.splitlines()
        if line.startswith("|")
        for name in re.findall(pattern, line.split("|")[1])
    }


def test_the_list_is_read_whole() -> None:
    lines = [line for line in API.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(functions()) + len({name.split(".")[0] for name, _ in columns()})


def test_every_function_has_its_arguments_and_result(db: Connection) -> None:
    here = {signature for signature, _ in db.rows(FUNCTIONS_HERE)}
    other = {each.name for each in functions() if each.signature not in here}
    assert other == documented(r"`(\w+)\(")


def test_every_column_has_its_type(db: Connection) -> None:
    missing = {name for name, _ in set(columns()) - set(db.rows(COLUMNS_HERE))}
    assert missing == documented(r"`(\w+\.\w+)`")


def test_who_may_call_a_function_there_may_call_it_here(db: Connection) -> None:
    here = {signature: set(roles) for signature, roles in db.rows(FUNCTIONS_HERE)}
    refused = {
        each.signature: each.roles - here[each.signature] - {""}
        for each in functions()
        if each.signature in here
    }
    assert {signature: roles for signature, roles in refused.items() if roles} == {}
