"""Finds the other components of a project."""

from typing import TypeVar

import dagster as dg

Found = TypeVar("Found", bound=dg.Component)


def all_components(context: dg.ComponentLoadContext, of_type: type[Found]) -> list[Found]:
    """Returns the project's components of a type; none if the component is loaded by itself."""
    if context.component_path.instance_key is None:
        return []
    return context.component_tree.get_all_components(of_type)
