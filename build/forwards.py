"""Writes out the functions that only pass their arguments on, which a SQL file states in short.

    forward pgq.finish_batch(x_batch_id bigint) returns integer
    as pgque.finish_batch(x_batch_id);

becomes a function with the rights of its owner and a search_path of its schema.
"""

import re

_FORWARD = re.compile(
    r"^forward (?P<schema>\w+)(?P<name>\.\w+)\((?P<arguments>[^;]*?)\) returns (?P<type>[\w ]+)"
    r"\nas (?P<call>[^;]+);$",
    re.MULTILINE,
)
_FUNCTION = """\
create or replace function {schema}{name}({arguments})
returns {type}
language plpgsql security definer
set search_path = {schema}, pg_catalog, pg_temp
as $$
begin
    return {call};
end;
$$;"""


def write_out(text: str) -> str:
    """Returns the text of a SQL file with its forwards as functions."""
    return _FORWARD.sub(lambda found: _FUNCTION.format(**found.groupdict()), text)
