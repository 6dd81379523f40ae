"""The command line of the demo: `python -m demo [--interactive]`."""

import argparse
import sys

import psycopg

from harness import HarnessError, leftovers
from harness.interrupts import Interrupts
from harness.place import Place
from pgque_dagster.client import PgqueError
from pgque_dagster.embedded import EmbeddedPostgresError

from .play import FOLDER, Options, play

_NEXT = (
    "  make dev                            the same with Dagster's UI, until Ctrl-C",
    "  .venv/bin/pgque init ../shop        a project of your own",
    "  less docs/start.md                  your tables in the lake, or your events in an asset",
)


def main() -> int:
    """Runs the demo and returns the exit code."""
    options = _parse_options()
    place = Place(FOLDER)
    leftovers.end_with_this_process()
    try:
        with Interrupts() as interrupts, place.taken():
            summary = play(options, place, interrupts)
    except SystemExit:
        # Raised by a signal, which is the normal end of an interactive demo.
        if options.interactive:
            return 0
        raise
    except (HarnessError, PgqueError, EmbeddedPostgresError, psycopg.Error, OSError) as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return 1

    if summary is None:
        return 0
    print(*summary.lines(), sep="\n")
    if summary.failures:
        print(*summary.failures, sep="\n", file=sys.stderr)
        print("demo: the replicas differ from the bank", file=sys.stderr)
        return 1
    print("The replicas equal the bank, row by row. Next:", *_NEXT, sep="\n")
    return 0


def _parse_options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="pgbench moves money, its tables are replicated into Delta, a table"
        " is altered, a run is killed, and the demo compares the replicas with the bank.",
    )
    parser.add_argument("--interactive", action="store_true", help="keep running until Ctrl-C")
    parser.add_argument(
        "--rate", type=int, default=100, help="transactions per second (default: %(default)s)"
    )
    parser.add_argument(
        "--pg",
        type=int,
        choices=(18, 16),
        default=18,
        help="version of PostgreSQL (default: %(default)s)",
    )
    given = parser.parse_args()
    if given.rate < 1:
        parser.error("--rate must be at least 1")
    return Options(
        interactive=given.interactive,
        rate=given.rate,
        postgres=given.pg,
    )


if __name__ == "__main__":
    sys.exit(main())
