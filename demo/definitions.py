"""The code location of this project, with everything that `defs/` defines."""

import sys
from pathlib import Path

import dagster as dg

_PROJECT = Path(__file__).parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """Loads the folder `defs` of the project that this module belongs to."""
    # For Dagster, the workspace sets a working_directory; for `dg`, nothing does.
    if str(_PROJECT) not in sys.path:
        sys.path.append(str(_PROJECT))
    return dg.load_from_defs_folder(path_within_project=_PROJECT)
