"""Runs the benchmarks on the embedded server and prints Markdown tables: `make bench`."""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import producers
from benchmarks.measure import to_markdown
from pgque_dagster import installer
from pgque_dagster.embedded import EmbeddedPostgres


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one to warm up")
    options = parser.parse_args()
    pace = {"seconds": options.seconds, "rounds": options.rounds}

    with (
        tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres") as server,
    ):
        url = server.create_database("bench")
        installer.install(url)
        single = producers.single(server, url, **pace)
        print(to_markdown("Single events, 4 clients", "transactions", single), flush=True)
        batched = producers.batched(url, **pace)
        print(to_markdown(f"{producers.BATCH} events a transaction", "events", batched))


if __name__ == "__main__":
    main()
