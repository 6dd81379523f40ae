"""The files of a new project, which `pgque init` and `dg scaffold` write."""

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "new_project"
"""The project itself, with the package `shop`, the queue `orders` and the asset `revenue`."""


def with_names(path: str, names: Mapping[str, str]) -> str:
    """Returns a file of the project with other names in place of its own.

    Args:
        path: the path of the file in the project.
        names: the new names by the old ones.
    """
    # The longest first, because one may begin with another.
    old = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"\b({old})\b", lambda found: names[found[0]], (FOLDER / path).read_text())
