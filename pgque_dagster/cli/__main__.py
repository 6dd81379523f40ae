"""Lets `python -m pgque_dagster.cli` stand for `pgque`."""

from . import main

main()
