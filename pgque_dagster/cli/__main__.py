"""Makes `python -m pgque_dagster.cli` run `pgque`."""

from . import main

main()
