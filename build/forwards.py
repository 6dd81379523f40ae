"""Writes out the functions that only pass their arguments on, which a SQL file states in short.

    forward pgq.finish_batch(x_batch_id bigint) returns integer
    as pgque.finish_batch(x_batch_id);

becomes a function with the rights of its owner and a search_path of its schema. It may return rows
(`returns setof record`).
"""

import re

_FORWARD = re.compile(
    r"^forward (?P<schema>\w+)(?P<name>\.\w+)\((?P<arguments>[^;]*?)\)\sreturns (?P<type>[^\n]+)"
    r"\nas (?P<call>[^;]+);$",
    re.MULTILINE,
)
_ROWS = "return query select * from"
_FUNCTION = """\
create or replace function {schema}{name}({arguments})
returns {type}
language plpgsql security definer
set search_path = {schema}, pg_catalog, pg_temp
as $$
begin
    {verb} {call};
end;
$$;"""


def write_out(text: str) -> str:
    """Returns the text of a SQL file with its forwards as functions."""
    return _FORWARD.sub(_function, text)


def _function(found: re.Match[str]) -> str:
    kind = found["type"].split(" ")[0]
    verb = {"void": "perform", "setof": _ROWS, "table": _ROWS}.get(kind, "return")
    return _FUNCTION.format(verb=verb, **found.groupdict())
