"""Runs the benchmarks against PgQ's C extension on Debian's PostgreSQL 15: `make bench`.

Needs the Debian packages postgresql-15 and postgresql-15-pgq3. Prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import (
    client,
    consumers,
    jobs,
    latency,
    message_soak,
    messages,
    observability,
    partitions,
    picture,
    producers,
    publishing,
    serial,
    soak,
    stalls,
    ticks,
)
from benchmarks.measure import Result, to_markdown, write_section
from benchmarks.servers import rivals
from harness.leftovers import end_with_this_process

_DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=5, help="duration of each measurement of producers"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of rounds, after a warm-up round"
    )
    parser.add_argument("--soak", type=float, default=1, help="minutes with a held xmin horizon")
    parser.add_argument(
        "--only",
        choices=(
            "producers",
            "client",
            "jobs",
            "publishing",
            "latency",
            "soak",
            "partitions",
            "serial",
            "consumers",
            "ticks",
            "observability",
            "stalls",
            "messages",
            "message-soak",
        ),
    )
    parser.add_argument(
        "--large-lock-table",
        action="store_true",
        help="allow 300 connections with 1,024 locks each",
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table and the picture into docs/"
    )
    options = parser.parse_args()
    parts = {
        "producers": lambda url: producers.measure(
            url, seconds=options.seconds, rounds=options.rounds
        ),
        "client": lambda url: client.measure(url, rounds=options.rounds),
        "jobs": lambda url: jobs.measure(url, rounds=options.rounds),
        "publishing": lambda url: publishing.measure(
            url, seconds=options.seconds, rounds=options.rounds
        ),
        "latency": lambda url: latency.measure(url, seconds=30),
        "partitions": lambda url: partitions.measure(url, rounds=options.rounds),
        "serial": lambda url: serial.measure(url, rounds=options.rounds),
        "observability": lambda url: observability.measure(url, rounds=options.rounds),
        "consumers": lambda url: consumers.measure(url, rounds=options.rounds),
        "ticks": lambda url: ticks.measure(url, rounds=options.rounds),
        "soak": lambda url: soak.measure(url, seconds=options.soak * 60),
        "messages": lambda url: messages.measure(url, rounds=options.rounds),
        "message-soak": lambda url: message_soak.measure(url, seconds=options.soak * 60),
        "stalls": lambda url: stalls.measure(url, seconds=60),
    }
    settings = (
        {"max_connections": "300", "max_locks_per_transaction": "1024"}
        if options.large_lock_table
        else {}
    )
    results: list[Result] = []
    for name, measure in parts.items():
        if options.only in (None, name):
            print(f"measuring {name}", file=sys.stderr, flush=True)
            # Each has its own server, because some leave long logs or much to write.
            with rivals(**settings) as url:
                results += measure(url)
    table = to_markdown(results)
    print(table)
    if options.write:
        picture.draw(results, _DOCS / "images" / "benchmarks.png")
        write_section(_DOCS / "benchmarks.md", "results", table)


if __name__ == "__main__":
    end_with_this_process()
    main()
