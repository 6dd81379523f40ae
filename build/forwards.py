"""Writes out what SQL files state in short: the search_path of functions, and those that forward.

Each function runs with the search_path of its schema, unless build/unpinned.txt has its name with
the reason. A function that only passes its arguments on is two lines:

    forward pgq.finish_batch(x_batch_id bigint) returns integer
    as pgque.finish_batch(x_batch_id);

It has the rights of its owner, and may return a row or rows (`returns record`, `returns setof
record`). An overload runs with the rights of its caller, and
the planner inlines it, so the names in it need their schemas:

    overload qgres.add(queue_id integer, text text) returns void
    as qgres._add($1, row(null, null, $2)::qgres.queue_entry);
"""

import re
from collections.abc import Collection
from pathlib import Path

UNPINNED_FILE = Path("build/unpinned.txt")

_FORWARD = re.compile(
    r"^(?P<kind>forward|overload) (?P<schema>\w+)(?P<name>\.[\w\"]+)\((?P<arguments>[^;]*?)\)"
    r"\sreturns (?P<type>[^\n]+)"
    r"\nas (?P<call>[^;]+);$",
    re.MULTILINE,
)
_OUT = re.compile(r"\bout (\w+)")
_ROWS = "return query select * from"
_FUNCTION = """\
create or replace function {schema}{name}({arguments})
returns {type}
language plpgsql security definer{path}
as $$
begin
    {verb} {call};
end;
$$;"""

_OVERLOAD = """\
create or replace function {schema}{name}({arguments})
returns {type}
language sql
as $$
    select {call};
$$;"""

_HEADER = re.compile(
    r"^create or replace (?:function|procedure) (?P<schema>\w+)\.(?P<name>\w+)\(.*?\nas \$\$$",
    re.MULTILINE | re.DOTALL,
)
_LANGUAGE = re.compile(r"^language [^\n]+$", re.MULTILINE)


def write_out(text: str, unpinned: Collection[str]) -> str:
    """Returns the text of a SQL file with forwards as functions, and functions with a search_path.

    Args:
        text: of the file.
        unpinned: full names of functions that have no search_path of their own.
    """

    def pin(found: re.Match[str]) -> str:
        header = found[0]
        if "set search_path" in header or f"{found['schema']}.{found['name']}" in unpinned:
            return header
        path = f"set search_path = {found['schema']}, pg_catalog, pg_temp"
        # In the same line, so that the numbers of lines are those of the file.
        return _LANGUAGE.sub(lambda language: f"{language[0]} {path}", header, count=1)

    def forward(found: re.Match[str]) -> str:
        return _function(found, f"{found['schema']}{found['name']}" in unpinned)

    return _HEADER.sub(pin, _FORWARD.sub(forward, text))


def read_reasons(file: Path) -> dict[str, str]:
    """Reads a list of names with reasons: one name a line, then the reason; `#` comments."""
    reasons = {}
    for line in file.read_text().splitlines():
        name, _, reason = line.partition("#")[0].strip().partition(" ")
        if name:
            reasons[name] = reason.strip()
    return reasons


def _function(found: re.Match[str], is_unpinned: bool) -> str:
    if found["kind"] == "overload":
        return _OVERLOAD.format(**found.groupdict())
    kind = found["type"].split(" ")[0]
    row = f"select * into {', '.join(_OUT.findall(found['arguments']))} from"
    verbs = {"void": "perform", "setof": _ROWS, "table": _ROWS, "record": row}
    verb = verbs.get(kind, "return")
    path = "" if is_unpinned else f"\nset search_path = {found['schema']}, pg_catalog, pg_temp"
    return _FUNCTION.format(verb=verb, path=path, **found.groupdict())
