"""All definitions of the project: what the folder `defs` has."""

import warnings
from pathlib import Path

import dagster as dg

# Dagster warns of a parameter that it passes itself when it loads asset checks.
warnings.filterwarnings("ignore", "Parameter `execution_type`", dg.BetaWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """Loads the folder `defs`."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
