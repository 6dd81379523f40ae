"""Names of a package that are loaded on first use, from modules that may need extras."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str], extras: str) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports a name from its module.

    Args:
        package: the package's name.
        modules: the module of each name, relative to the package.
        extras: the extras with what the modules import, such as `spark,dagster`.

    Raises:
        ModuleNotFoundError: if a module that is not of this package is missing, with the command
            that installs the extras.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f".{modules[name]}", package), name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"No module named '{error.name}', which {name} needs: "
                f"run `pip install 'pgque-dagster[{extras}]'`",
                name=error.name,
            ) from error

    return load
