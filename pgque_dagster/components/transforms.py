"""Imports a function that YAML names, such as the transform of a consumer."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg

from .options import given_as

Transform = Callable[..., Any]


def function_option(what: str, *examples: str) -> dg.Resolver:
    """Returns the resolver of a function, which YAML gives by its import path."""
    return given_as(
        str,
        f"The import path of {what}. A leading dot stands for the folder of this file.",
        *examples,
        resolve=load_function,
    )


def load_function(context: dg.ResolutionContext, reference: str) -> Transform:
    """Imports a function.

    Args:
        context: the context of the YAML that names it.
        reference: `module.function`, or `.module.function` for a file in the folder of the YAML.

    Raises:
        ValueError: if there is no such module or function.
    """
    module_name, _, name = reference.rpartition(".")
    if not module_name.strip(".") or not name:
        raise ValueError(
            f"{reference!r} is not an import path: write module.function, or .module.function for "
            "a file beside this one"
        )
    if module_name.startswith("."):
        module_name = f"{_module_of_folder(context)}{module_name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{reference!r} cannot be imported: {error}") from error
    function: Transform | None = getattr(module, name, None)
    if not callable(function) or inspect.isclass(function):
        raise ValueError(f"module {module_name} has no function {name!r}")
    return function


def _module_of_folder(context: dg.ResolutionContext) -> str:
    load = dg.ComponentLoadContext.from_resolution_context(context)
    return load.defs_relative_module_name(load.path if load.path.is_dir() else load.path.parent)
