"""Writes out what SQL files state in short: language and search_path of functions, and forwards.

Each function is in PL/pgSQL, unless it says its language, and runs with the search_path of its
schema, unless build/unpinned.txt has its name with the reason. What else it is, such as security
definer, follows its result. A function that only passes its arguments on, or computes one
expression, is two lines:

    forward pgque.ack(i_batch_id bigint)
    as pgque.finish_batch(i_batch_id);

It has the rights of its owner and a search_path of its schema in any case. It returns what the
engine's function of that name and number of arguments returns, or what it says itself (`returns
bigint`, `returns text immutable`). Instead of a call it may have another expression, or a SELECT
whose rows it returns. Functions with the arguments and the result of a function of the engine are a
list, with the role that may execute them:

    forward pgq to pgque for pgq_reader:
        finish_batch(bigint), batch_retry(bigint, integer);

An overload runs with the rights of its caller, and the planner inlines it, so the names in it need
their schemas. Braces list alternatives: one in the arguments goes with one in the call, and each
combination becomes a function:

    overload qgres.add({queue_id integer | queue_name text}, text text) returns void
    as qgres._add({$1 | qgres.queue__get_id($1)}, $2);

Copies are functions of the engine under another schema or name, with some texts replaced. Each text
must be in each of the functions:

    copy to pgq from pgque: jsontriga(), jsontriga() as logutriga
    replace (grant pgque_writer) with (grant pgq_writer)
    ;
"""

import re
from collections.abc import Collection, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from textwrap import fill

UNPINNED_FILE = Path("build/unpinned.txt")

_FORWARD = re.compile(
    r"^(?P<kind>forward|overload) (?P<schema>\w+)(?P<name>\.[\w\"]+)\((?P<arguments>[^;]*?)\)"
    r"(?:\sreturns (?P<type>[^\n]+?)(?P<volatility> immutable| stable)?)?"
    r"\nas (?P<call>[^;]+);$",
    re.MULTILINE,
)
_CALL = re.compile(r"(?P<engine>\w+)\.(?P<name>\w+)\((?P<arguments>.*)\)$", re.DOTALL)
_LIST = re.compile(
    r"^forward (?P<schema>\w+) to (?P<engine>\w+) for (?P<role>\w+):(?P<names>[^;]+);$",
    re.MULTILINE,
)
_LISTED = re.compile(r"(\w+)\(([^)]*)\)")
_RENAMED = re.compile(rf"{_LISTED.pattern}(?: as (\w+))?")
_SIGNATURE = re.compile(
    r"^create or replace function (?P<engine>\w+)\.(?P<name>\w+)"
    r"\((?P<arguments>[^;]*?)\)\nreturns (?P<type>[^\n]+?)"
    r"(?: (?:immutable|stable|strict|security definer))*$",
    re.MULTILINE,
)
_COPY = re.compile(
    r"^copy to (?P<schema>\w+) from (?P<engine>\w+):(?P<names>[^\n]+)\n"
    r"(?P<changes>(?:replace \(.*?\) with \(.*?\)\n)+);$",
    re.MULTILINE | re.DOTALL,
)
_CHANGE = re.compile(r"replace \((.*?)\) with \((.*?)\)\n(?=replace|$)", re.DOTALL)
_ENGINE_FOLDERS = ("engine", "api", "ops")
_CHOICE = re.compile(r"\{([^}]*)\}")
_OUT = re.compile(r"\bout\s+(\w+)")
_ROWS = "return query select * from"
_FUNCTION = """\
create or replace function {schema}{name}({arguments})
returns {type}
language plpgsql{volatility} security definer{path}
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
_LANGUAGE = re.compile(r"^language (?:(?! as \$\$$| set )[^\n])+", re.MULTILINE)
_ATTRIBUTES = re.compile(
    r"((?: (?:immutable|stable|strict|security definer))*)\n(as \$\$|set )", re.MULTILINE
)


def write_out(root: Path, text: str, unpinned: Collection[str]) -> str:
    """Returns the text of a SQL file with forwards as functions, and functions with a search_path.

    Args:
        root: of the project, whose SQL files have the signatures of the engine.
        text: of the file.
        unpinned: full names of functions that have no search_path of their own.
    """

    def pin(found: re.Match[str]) -> str:
        header = found[0]
        if not _LANGUAGE.search(header):
            header = _ATTRIBUTES.sub(r"\nlanguage plpgsql\1 \2", header, count=1)
        if "set search_path" in header or f"{found['schema']}.{found['name']}" in unpinned:
            return header
        path = f"set search_path = {found['schema']}, pg_catalog, pg_temp"
        # In the same line, so that the numbers of lines are those of the file.
        return _LANGUAGE.sub(lambda language: f"{language[0]} {path}", header, count=1)

    text = _LIST.sub(lambda found: _listed(root, found), text)
    text = _COPY.sub(lambda found: _copied(root, found), text)
    written = partial(_function, root=root, unpinned=unpinned)
    return _HEADER.sub(pin, _FORWARD.sub(written, text))


def read_reasons(file: Path) -> dict[str, str]:
    """Reads a list of names with reasons: one name a line, then the reason; `#` comments."""
    reasons = {}
    for line in file.read_text().splitlines():
        name, _, reason = line.partition("#")[0].strip().partition(" ")
        if name:
            reasons[name] = reason.strip()
    return reasons


def _function(
    found: re.Match[str], root: Path | None = None, unpinned: Collection[str] = ()
) -> str:
    parts = found.groupdict()
    if parts["type"] is None:
        if root is None:
            return found[0]
        parts["type"], outs = _result(root, found["call"])
        whole = ", ".join(each.replace(" ", "\0") for each in outs)
        wrapped = fill(whole, 96, subsequent_indent="    ").replace("\0", " ")
        parts["arguments"] = ",\n    ".join(filter(None, [parts["arguments"], wrapped]))
    if found["kind"] == "overload":
        comment = f"-- A form of {parts['call'].partition('(')[0]}.\n"
        written = [_OVERLOAD.format(**(parts | each)) for each in _alternatives(parts)]
        return f"\n\n{comment}".join(written)
    path = "" if f"{parts['schema']}{parts['name']}" in unpinned else _path(parts["schema"])
    return _forward(**parts, path=path)


def _result(root: Path, call: str) -> tuple[str, list[str]]:
    """Returns the result and the out arguments of the engine's functions that a call may mean."""
    called = _CALL.match(call)
    assert called is not None, call
    count = len([each for each in called["arguments"].split(",") if each.strip()])
    results = {
        (found["type"], tuple(_arguments(found["arguments"], "out ")))
        for (engine, name, _), found in _signatures(root).items()
        if (engine, name) == (called["engine"], called["name"])
        and len(_given(found["arguments"])) == count
    }
    if len(results) != 1:
        raise LookupError(f"write what this returns: as {call}")
    ((result, outs),) = results
    return result, list(outs)


def _path(schema: str) -> str:
    return f"\nset search_path = {schema}, pg_catalog, pg_temp"


def _forward(
    schema: str,
    name: str,
    arguments: str,
    type: str,
    call: str,
    path: str,
    volatility: str | None = None,
    **_: str,
) -> str:
    row = f"select * into {', '.join(_OUT.findall(arguments))} from"
    verbs = {"void": "perform", "setof": _ROWS, "table": _ROWS, "record": row}
    verb = verbs.get(type.split(" ")[0], "return")
    return _FUNCTION.format(
        schema=schema,
        name=name,
        arguments=arguments,
        type=type,
        verb="return query" if call.startswith("select ") else verb,
        call=call,
        path=path,
        volatility=volatility or "",
    )


def _alternatives(parts: dict[str, str]) -> list[dict[str, str]]:
    """Returns the arguments and calls of an overload, for each choice of its alternatives."""
    choices = [
        list(zip(given.split(" | "), called.split(" | "), strict=True))
        for given, called in zip(
            _CHOICE.findall(parts["arguments"]), _CHOICE.findall(parts["call"]), strict=True
        )
    ]
    found = []
    for chosen in product(*choices):
        given, called = iter(pair[0] for pair in chosen), iter(pair[1] for pair in chosen)
        found.append(
            {
                "arguments": _chosen(parts["arguments"], given),
                "call": _chosen(parts["call"], called),
            }
        )
    return found


def _chosen(text: str, choices: Iterator[str]) -> str:
    """Puts a choice in the place of each list of alternatives."""
    return " ".join(_CHOICE.sub(lambda _: next(choices), text).split()).replace("( ", "(")


def _listed(root: Path, found: re.Match[str]) -> str:
    """Writes the functions of a list out, each with its comment, and their grant."""
    schema, engine = found["schema"], found["engine"]
    written, granted = [], []
    for name, types in _LISTED.findall(found["names"]):
        signature = _signature(root, engine, name, types)
        arguments, result = signature["arguments"], signature["type"]
        names = [each.split()[0] for each in _given(arguments)]
        function = _forward(
            schema,
            f".{name}",
            arguments,
            result,
            f"{engine}.{name}({', '.join(names)})",
            _path(schema),
        )
        comment = f"-- Does what {engine}.{name} does.\n-- locks, writes: the same.\n"
        written.append(comment + function)
        granted.append(f"    {schema}.{name}({types})")
    grants = ",\n".join(granted)
    return "\n\n".join([*written, f"grant execute on function\n{grants}\nto {found['role']};"])


def _copied(root: Path, found: re.Match[str]) -> str:
    """Writes functions of the engine out under another schema."""
    written: list[str] = []
    is_described = found.string[: found.start()].rpartition("\n\n")[2].startswith("--")
    for name, types, new_name in _RENAMED.findall(found["names"]):
        head = _signature(root, found["engine"], name, types)
        text = head.string[head.start() :].partition("\n$$;")[0] + "\n$$;"
        changes = _CHANGE.findall(found["changes"])
        renamed = (
            f"function {found['engine']}.{name}(",
            f"function {found['schema']}.{new_name or name}(",
        )
        for old, new in [renamed, *changes]:
            if text.count(old) != 1:
                raise LookupError(f"{found['engine']}.{name} does not have this text once: {old}")
            text = text.replace(old, new)
        comment = f"-- As {found['engine']}.{name}, with changes.\n"
        written.append(text if is_described and not written else comment + text)
    return "\n\n".join(written)


def _signature(root: Path, engine: str, name: str, types: str) -> re.Match[str]:
    signature = _signatures(root).get((engine, name, types)) or _short(root).get(
        (engine, name, types)
    )
    if signature is None:
        raise LookupError(f"sql/ has no function {engine}.{name}({types})")
    return signature


@cache
def _signatures(root: Path) -> dict[tuple[str, str, str], re.Match[str]]:
    """Returns the heads of the engine's functions by schema, name and types of arguments."""
    files = (file for folder in _ENGINE_FOLDERS for file in (root / "sql" / folder).rglob("*.sql"))
    return _heads("\n".join(_FORWARD.sub(_function, file.read_text()) for file in files))


@cache
def _short(root: Path) -> dict[tuple[str, str, str], re.Match[str]]:
    """Returns the heads of those that forward to the functions above and do not say the result."""
    files = (file for folder in _ENGINE_FOLDERS for file in (root / "sql" / folder).rglob("*.sql"))
    forwards = (found for file in files for found in _FORWARD.finditer(file.read_text()))
    return _heads("\n".join(_function(each, root) for each in forwards if each["type"] is None))


def _heads(text: str) -> dict[tuple[str, str, str], re.Match[str]]:
    return {
        (found["engine"], found["name"], ", ".join(map(_type, _given(found["arguments"])))): found
        for found in _SIGNATURE.finditer(text)
    }


def _given(arguments: str) -> list[str]:
    """Returns the input arguments of a list."""
    outs = _arguments(arguments, "out ")
    return [argument for argument in _arguments(arguments, "") if argument not in outs]


def _arguments(arguments: str, start: str) -> list[str]:
    """Returns the arguments of a list that begin so."""
    each = (" ".join(argument.split()) for argument in arguments.split(","))
    return [argument for argument in each if argument and argument.startswith(start)]


def _type(argument: str) -> str:
    return argument.partition(" ")[2].partition(" default ")[0]
