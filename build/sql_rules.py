"""The rules for the SQL files of the queue."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sql_names import unqualified_names
from sql_source import Expression, Node, Routine, Statement, blank_comments, walk

ENGINE = ("pgque",)
MAX_BODY_LINES = 60

_FORMAT_SPECIFIER = re.compile(r"%(?:%|(?:\d+\$)?-?(?:\d+|\*)?(.))", re.DOTALL)
# A literal with its continuations on further lines.
_CHANGE = re.compile(
    r"\b(?:insert into|update (?!skip\b)|delete from|truncate|lock table"
    r"|for (?:no key )?update|for (?:key )?share)\b",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"(?<!\w)(e?)'(?:[^']|'')*'(?:\s*\n\s*'(?:[^']|'')*')*", re.IGNORECASE)
_QUOTED_COMMENT = re.compile(r"--\s*quoted:\s*\S", re.IGNORECASE)
_EVERY_ROUTINE = ({"OBJECT_ROUTINE"}, {"OBJECT_FUNCTION", "OBJECT_PROCEDURE"})


@dataclass(frozen=True, order=True)
class Finding:
    """One breach of a rule."""

    path: Path
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Source:
    """A file to check.

    Attributes:
        schemas: those of the engine, or of the add-on that the file belongs to.
        public: what an add-on may grant to PUBLIC, as its original does, with the reasons.
    """

    path: Path
    text: str
    schemas: tuple[str, ...] = ENGINE
    public: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @cached_property
    def code(self) -> list[str]:
        """Its lines without comments."""
        return blank_comments(self.text).splitlines()

    def finding(self, line: int, rule: str, message: str) -> Finding:
        """Returns a finding in this file."""
        return Finding(self.path, line, rule, message)


def check_routine(source: Source, routine: Routine, unpinned: Mapping[str, str]) -> list[Finding]:
    """Checks one function or procedure.

    Args:
        source: Its file.
        routine: The routine.
        unpinned: Full names of routines that need no fixed search_path, with the reasons.
    """
    findings = [
        *_check_creation(source, routine),
        *_check_search_path(source, routine, unpinned),
        *_check_comment(source, routine),
        *_check_backslashes(source, routine),
    ]
    if routine.language == "plpgsql":
        findings += _check_length(source, routine)
    return [*findings, *check_dynamic_sql(source, list(routine.expressions()))]


def _check_creation(source: Source, routine: Routine) -> Iterator[Finding]:
    if routine.schema not in source.schemas:
        schema = source.schemas[0]
        yield source.finding(
            routine.line,
            "schema",
            f"{routine.name} is created outside the schema {schema}."
            f" Name it {schema}.{routine.name}",
        )
    if not routine.replaces:
        yield source.finding(
            routine.line,
            "create-or-replace",
            f"{routine.name} cannot be installed again. Write create or replace",
        )
    if routine.language is None:
        yield source.finding(
            routine.line, "language", f"{routine.name} names no language. Write language plpgsql"
        )


def _check_search_path(
    source: Source, routine: Routine, unpinned: Mapping[str, str]
) -> Iterator[Finding]:
    name = routine.full_name
    own = routine.schema if routine.schema in source.schemas else source.schemas[0]
    path = (own, "pg_catalog", "pg_temp")
    pinned = ", ".join(path)
    if routine.search_path is not None:
        if routine.search_path != path:
            yield source.finding(
                routine.line,
                "search-path",
                f"{name} pins another search_path. Write set search_path = {pinned}",
            )
    elif name not in unpinned:
        yield source.finding(
            routine.line,
            "search-path",
            f"{name} runs with its caller's search_path. Write set search_path = {pinned},"
            " or list it in build/unpinned.txt",
        )
    elif not unpinned[name].startswith(("internal:", "caller:")):
        for line, found in unqualified_names(routine):
            yield source.finding(
                line,
                "qualified",
                f"{found} has no schema in {name}, which pins no search_path. Write its schema,"
                " or operator(pg_catalog....)",
            )


def _check_comment(source: Source, routine: Routine) -> Iterator[Finding]:
    block: list[str] = []
    for line in reversed(routine.statement.leading.rstrip(" \t").splitlines()):
        if not line.lstrip().startswith("--"):
            break
        block.append(line.lower())
    text = "\n".join(reversed(block))
    if not text.partition("locks:")[0].strip("- \n"):
        message = f"{routine.name} lacks its comment. Directly before it, say why it exists"
        yield source.finding(routine.line, "comment", message)
    elif ("locks:" not in text or "writes:" not in text) and (
        change := _CHANGE.search(_LITERAL.sub("''", blank_comments(routine.body)))
    ):
        yield source.finding(
            routine.line,
            "comment",
            f"the comment of {routine.name} does not say what it locks: and writes:, although it"
            f" has {change[0]!r}",
        )


def _check_backslashes(source: Source, routine: Routine) -> Iterator[Finding]:
    """A body is parsed in its caller's session, whose standard_conforming_strings may be off."""
    body = blank_comments(routine.body)
    for match in _LITERAL.finditer(body):
        if "\\" in match[0] and not match[1]:
            yield source.finding(
                routine.body_line + body[: match.start()].count("\n"),
                "backslash",
                f"{match[0]} means something else where standard_conforming_strings is off."
                " Write e'...' with doubled backslashes",
            )


def _check_length(source: Source, routine: Routine) -> Iterator[Finding]:
    length = routine.body.strip().count("\n") + 1
    if length > MAX_BODY_LINES:
        yield source.finding(
            routine.line,
            "length",
            f"{routine.name} has {length} lines, and {MAX_BODY_LINES} are allowed. Split it",
        )


def check_dynamic_sql(source: Source, expressions: list[Expression]) -> Iterator[Finding]:
    """Checks the texts that are executed as SQL, and the variables that contain such texts."""
    executed = {_variable(each.trees[0]) for each in expressions if each.dynamic} - {None}
    for expression in expressions:
        if expression.dynamic or expression.assigned_variable in executed:
            yield from _check_executed(source, expression)


def _check_executed(source: Source, expression: Expression) -> Iterator[Finding]:
    def finding(line: int, message: str) -> Finding:
        return source.finding(line, "dynamic-sql", message)

    tree = expression.trees[0]
    operators = (node["A_Expr"]["name"] for node in walk(tree) if "A_Expr" in node)
    if any(names[-1]["String"]["sval"] == "||" for names in operators):
        yield finding(expression.line, "SQL is glued with ||. Use format() with %I and %L")
        return
    value = _value(tree)
    call = value.get("FuncCall")
    if call is None or call["funcname"][-1]["String"]["sval"] != "format":
        if _is_text(value) or "ColumnRef" in value:
            return
        yield finding(
            expression.line,
            "the executed SQL is not a variable, a literal or a format(). Use format()",
        )
        return
    template = call["args"][0]
    if not _is_text(template):
        yield finding(expression.line, "format() has no literal template. Write the text there")
        return
    for match in _FORMAT_SPECIFIER.finditer(template["A_Const"]["sval"]["sval"]):
        if match[1] not in (None, "I", "L", "s"):
            yield finding(expression.line, f"format() has no {match[0]}. Use %I, %L or %s")
    for line in _lines_with_plain_text(source, expression, template):
        # One comment at the start of the statement may cover a long text.
        places = (source.lines[expression.line - 1], source.lines[line - 1])
        if not any(_QUOTED_COMMENT.search(place) for place in places):
            yield finding(
                line, "%s inserts text as it is. Use %I or %L, or add -- quoted: <why it is safe>"
            )


def _lines_with_plain_text(source: Source, expression: Expression, template: Node) -> Iterator[int]:
    """Yields the lines of the file on which the template has a %s."""
    code = "\n".join(source.code[expression.line - 1 :])
    start = max(code.find(expression.text), 0)
    expected = _plain_specifiers(template["A_Const"]["sval"]["sval"])
    # The template is the first argument, so a %s of a nested format() comes after its own.
    for match in _plain_specifiers(expression.text)[: len(expected)]:
        yield expression.line + code[: start + match.start()].count("\n")


def _plain_specifiers(text: str) -> list[re.Match[str]]:
    return [match for match in _FORMAT_SPECIFIER.finditer(text) if match[1] == "s"]


def check_grants(source: Source, statement: Statement) -> Iterator[Finding]:
    """Checks that nothing is granted to PUBLIC but what the original of an add-on grants."""
    for node in walk({statement.kind: statement.tree}):
        grant = node.get("GrantStmt", node.get("action") if "action" in node else None)
        if not isinstance(grant, dict) or not grant.get("is_grant") or not _names_public(grant):
            continue
        if not all(name in source.public for name in _granted_names(grant)):
            yield source.finding(
                statement.line,
                "public",
                "a privilege is granted to PUBLIC. Grant it to one of the roles",
            )


def _granted_names(grant: Node) -> Iterator[str]:
    """Yields the schemas, relations, types and routines that are granted, by their full names."""
    # ALTER DEFAULT PRIVILEGES names no object.
    for each in grant.get("objects", [{}]):
        names = each.get("ObjectWithArgs", {}).get("objname") or each.get("List", {}).get("items")
        if "String" in each:
            yield each["String"]["sval"]
        elif "RangeVar" in each:
            yield f"{each['RangeVar'].get('schemaname')}.{each['RangeVar']['relname']}"
        else:
            yield ".".join(part["String"]["sval"] for part in names or ())


def check_revoked(source: Source, statements: list[Statement]) -> Iterator[Finding]:
    """Checks that the last file revokes EXECUTE on all routines of the first schema from PUBLIC."""
    schema = source.schemas[0]
    revoked = {
        statement.tree["objtype"]
        for statement in statements
        if statement.kind == "GrantStmt"
        and not statement.tree.get("is_grant")
        and "privileges" not in statement.tree
        and statement.tree["targtype"] == "ACL_TARGET_ALL_IN_SCHEMA"
        and {"String": {"sval": schema}} in statement.tree["objects"]
        and _names_public(statement.tree)
    }
    if not any(routines <= revoked for routines in _EVERY_ROUTINE):
        yield source.finding(
            len(source.lines),
            "public",
            "the last file leaves EXECUTE to PUBLIC. Write revoke all on all routines in schema"
            f" {schema} from public",
        )


def _names_public(grant: Node) -> bool:
    return any(role["RoleSpec"]["roletype"] == "ROLESPEC_PUBLIC" for role in grant["grantees"])


def _value(tree: Node) -> Node:
    """Returns the only value that a SELECT of one expression computes."""
    value: Node = tree["stmt"]["SelectStmt"]["targetList"][0]["ResTarget"]["val"]
    return value


def _variable(tree: Node) -> str | None:
    fields = _value(tree).get("ColumnRef", {}).get("fields", [])
    if len(fields) != 1:
        return None
    name: str | None = fields[0].get("String", {}).get("sval")
    return name


def _is_text(value: Node) -> bool:
    return "sval" in value.get("A_Const", {})
