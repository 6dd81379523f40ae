"""The code location of this project: whatever `defs/` declares."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Loads the folder `defs` of the project that this module is installed from."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
