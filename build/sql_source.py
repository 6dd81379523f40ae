"""Reads SQL files into statements and routines, with PostgreSQL's own parser.

PL/pgSQL bodies are split into their expressions, each with its line in the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pgparse

Node = dict[str, Any]

_QUOTED_OR_COMMENT = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*")|--[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)
_DECLARATIONS = re.compile(r"\bdeclare\b.*?\bbegin\b", re.IGNORECASE | re.DOTALL)
_ROW_VARIABLE = re.compile(
    r'^(\s*\w+\s+)([\w."]+%rowtype|pgque\.\w+\b(?![.%\[]))', re.IGNORECASE | re.MULTILINE
)
_ASSIGNMENT_TARGET = re.compile(r'(?:"[^"]*"|\[[^\]]*\]|[^:="\[])*:?=', re.DOTALL)

# How PL/pgSQL parses an expression: values of its enumeration RawParseMode.
_WHOLE_STATEMENT = 0
_EXPRESSION = 2
_DYNAMIC_FIELDS = {
    "PLpgSQL_stmt_dynexecute": "query",
    "PLpgSQL_stmt_dynfors": "query",
    "PLpgSQL_stmt_open": "dynquery",
    "PLpgSQL_stmt_return_query": "dynquery",
}


class SqlError(Exception):
    """PostgreSQL's parser refuses a text."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a file."""

    kind: str
    tree: Node
    text: str
    """Its text without comments."""
    line: int
    leading: str
    """The white space and comments before it."""


@dataclass(frozen=True)
class Expression:
    """One SQL text inside a PL/pgSQL body."""

    text: str
    line: int
    mode: int
    dynamic: bool
    """Whether its value is executed as SQL."""

    @cached_property
    def trees(self) -> list[Node]:
        """Its parse trees."""
        text = self.text
        if self.mode == _EXPRESSION:
            text = f"select {text}"
        elif self.mode != _WHOLE_STATEMENT:
            text = "select " + _ASSIGNMENT_TARGET.sub("", text, count=1)
        return _parse(text, self.line)

    @property
    def assigned_variable(self) -> str | None:
        """The plain variable that this expression assigns to; None if there is none."""
        match = re.match(r"\s*(\w+)\s*:?=", self.text)
        if self.mode in (_WHOLE_STATEMENT, _EXPRESSION) or match is None:
            return None
        return match[1].lower()


@dataclass(frozen=True)
class Routine:
    """A function or a procedure, read from its CREATE statement."""

    statement: Statement
    schema: str | None
    name: str
    replaces: bool
    language: str | None
    search_path: tuple[str, ...] | None
    body: str
    body_line: int

    @property
    def full_name(self) -> str:
        """Its name with its schema."""
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def line(self) -> int:
        """The line on which it starts."""
        return self.statement.line

    @cached_property
    def plpgsql(self) -> Node:
        """The parse tree of a PL/pgSQL body."""
        return _parse_plpgsql(self.statement)

    def expressions(self) -> Iterator[Expression]:
        """Yields the SQL texts of the body: each expression in PL/pgSQL, or the whole body."""
        if self.language == "plpgsql":
            yield from _expressions(self.plpgsql, self.body_line - 1, self.body_line, False)
        elif self.body:
            yield Expression(self.body, self.body_line, _WHOLE_STATEMENT, dynamic=False)


def blank_comments(source: str) -> str:
    """Replaces comments by spaces, so that all positions stay.

    PostgreSQL allows a comment between the parts of a continued literal; this parser does not.
    """
    return _QUOTED_OR_COMMENT.sub(
        lambda match: match[0] if match["quoted"] else re.sub(r"[^\n]", " ", match[0]), source
    )


def read_statements(source: str) -> list[Statement]:
    """Splits the text of a file into its statements."""
    code = blank_comments(source)
    data = code.encode()
    statements = []
    for parsed in _parse(code, 1):
        begin = parsed.get("stmt_location", 0)
        end = begin + parsed["stmt_len"] if "stmt_len" in parsed else len(data)
        # The parser counts bytes.
        chunk = data[begin:end].decode()
        text = chunk.lstrip()
        before = len(data[:begin].decode())
        start = before + len(chunk) - len(text)
        ((kind, tree),) = parsed["stmt"].items()
        line = code[:start].count("\n") + 1
        statements.append(Statement(kind, tree, text, line, leading=source[before:start]))
    return statements


def read_routine(statement: Statement) -> Routine:
    """Reads a CREATE FUNCTION or CREATE PROCEDURE statement."""
    tree = statement.tree
    *schema, name = (part["String"]["sval"] for part in tree["funcname"])
    options = {element["defname"]: element for element in _unwrapped(tree["options"], "DefElem")}
    search_path = None
    for element in _unwrapped(tree["options"], "DefElem"):
        setting = element["arg"].get("VariableSetStmt", {}) if element["defname"] == "set" else {}
        if setting.get("name") == "search_path":
            search_path = tuple(
                constant.get("sval", {}).get("sval", "")
                for constant in _unwrapped(setting.get("args", []), "A_Const")
            )
    body = ""
    if "as" in options:
        body = options["as"]["arg"]["List"]["items"][0]["String"]["sval"]
    language = options["language"]["arg"]["String"]["sval"] if "language" in options else None
    offset = max(statement.text.find(body), 0) if body else 0
    return Routine(
        statement=statement,
        schema=schema[0] if schema else None,
        name=name,
        replaces=tree.get("replace", False),
        language=language,
        search_path=search_path,
        body=body,
        body_line=statement.line + statement.text[:offset].count("\n"),
    )


def read_block(statement: Statement) -> list[Expression]:
    """Returns the SQL texts of a DO block."""
    bodies = [
        element["arg"]["String"]["sval"]
        for element in _unwrapped(statement.tree["args"], "DefElem")
        if element["defname"] == "as"
    ]
    offset = max(statement.text.find(bodies[0]), 0)
    line = statement.line + statement.text[:offset].count("\n")
    return list(_expressions(_parse_plpgsql(statement), line - 1, line, False))


def walk(node: Any) -> Iterator[Node]:
    """Yields all dictionaries of a parse tree, parents first."""
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def _parse(text: str, line: int) -> list[Node]:
    try:
        trees: list[Node] = pgparse.parse(text)
    except pgparse.PGQueryError as error:
        raise SqlError(line, str(error)) from error
    return trees


def _parse_plpgsql(statement: Statement) -> Node:
    # The parser has no catalog, so it does not know which types are rows with fields.
    text = _DECLARATIONS.sub(
        lambda section: _ROW_VARIABLE.sub(r"\1record", section[0]), statement.text
    )
    try:
        trees: list[Node] = pgparse.parse_pgsql(text)
    except pgparse.PGQueryError as error:
        raise SqlError(statement.line, str(error)) from error
    return trees[0]


def _unwrapped(nodes: list[Node], kind: str) -> list[Node]:
    return [node[kind] for node in nodes]


def _expressions(node: Any, base: int, line: int, dynamic: bool) -> Iterator[Expression]:
    """Walks a PL/pgSQL tree.

    Args:
        node: The node to walk.
        base: The line of the file before the body's first line.
        line: The line of the enclosing statement.
        dynamic: Whether the node's expressions are executed as SQL.
    """
    if isinstance(node, list):
        for child in node:
            yield from _expressions(child, base, line, dynamic)
        return
    if not isinstance(node, dict):
        return
    if "PLpgSQL_expr" in node:
        expression = node["PLpgSQL_expr"]
        mode = expression.get("parseMode", _WHOLE_STATEMENT)
        yield Expression(expression["query"], line, mode, dynamic)
        return
    for kind, child in node.items():
        if not isinstance(child, dict):
            yield from _expressions(child, base, line, False)
            continue
        inner = base + child["lineno"] if "lineno" in child else line
        for field, value in child.items():
            executed = _DYNAMIC_FIELDS.get(kind) == field
            yield from _expressions(value, base, inner, executed)
