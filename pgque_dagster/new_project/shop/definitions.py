"""All definitions of the project: what the folder `defs` has."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Loads the folder `defs`."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
