"""Finds names in a parse tree that PostgreSQL would look up in the caller's search_path."""

from collections.abc import Iterator
from typing import Any

from sql_source import Expression, Node, Routine, walk

# Subqueries that compare look an operator up by its name.
_COMPARING_SUBQUERIES = {"ANY_SUBLINK", "ALL_SUBLINK"}


def unqualified_names(routine: Routine) -> Iterator[tuple[int, str]]:
    """Finds names without a schema in the body of a routine.

    Yields:
        The line, and the kind and name of the object.
    """
    for expression in routine.expressions():
        for found in _in_trees(expression.trees):
            yield expression.line, found
    for tree in walk(routine.statement.tree.get("sql_body", {})):
        for found in _in_node(tree, set()):
            yield routine.line, found
    if routine.language == "plpgsql":
        yield from _declared_types(routine)


def _in_trees(trees: list[Node]) -> Iterator[str]:
    for tree in trees:
        local = {node["ctename"] for node in walk(tree) if "ctename" in node}
        for node in walk(tree):
            yield from _in_node(node, local)


def _in_node(node: Node, local: set[str]) -> Iterator[str]:
    """Yields the names without a schema in one node.

    Args:
        node: A dictionary of the tree. Its fields show its kind, because the parser omits the kind
            where only one is possible.
        local: Names of the statement's own WITH queries.
    """
    if "relname" in node and "schemaname" not in node and node["relname"] not in local:
        yield f"table {node['relname']}"
    for field, word in (("funcname", "function"), ("names", "type"), ("collname", "collation")):
        parts = _parts(node.get(field))
        if len(parts) == 1:
            yield f"{word} {parts[0]}"
    if "A_Expr" in node:
        yield from _operator(_parts(node["A_Expr"]["name"]))
    if node.get("subLinkType") in _COMPARING_SUBQUERIES:
        yield from _operator(_parts(node.get("operName")) or ["= of IN"])
    if "useOp" in node:
        yield from _operator(_parts(node["useOp"]))
    if "CaseExpr" in node and "arg" in node["CaseExpr"]:
        yield "operator = of CASE"
    if "usingClause" in node or node.get("isNatural"):
        yield "operator = of JOIN USING"


def _operator(parts: list[str]) -> Iterator[str]:
    if len(parts) == 1:
        yield f"operator {parts[0]}"


def _parts(names: Any) -> list[str]:
    if not isinstance(names, list):
        return []
    return [part["String"]["sval"] for part in names if "String" in part]


def _declared_types(routine: Routine) -> Iterator[tuple[int, str]]:
    for node in walk(routine.plpgsql):
        variable = node.get("PLpgSQL_var")
        if variable is None or "lineno" not in variable:
            continue
        name = variable["datatype"]["PLpgSQL_type"]["typname"]
        line = routine.body_line + variable["lineno"] - 1
        if name.lower().endswith("%type"):
            # The type of a variable needs no look-up; a column's type has two dots with a schema.
            if name.count(".") == 1:
                yield line, f"type {name}"
            continue
        for found in _in_trees(Expression(f"null::{name}", line, mode=2, dynamic=False).trees):
            yield line, found
