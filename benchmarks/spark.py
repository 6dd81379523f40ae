"""Measures Spark's reads and writes against its JDBC source and psql: `make bench-spark`.

Needs the Debian packages postgresql-15 and libpostgresql-jdbc-java. Prints a Markdown table;
`--write` puts it into docs/benchmarks.md.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks import spark_jdbc as jdbc
from benchmarks import spark_memory, spark_write
from benchmarks.measure import Contender, Result, medians, timed, to_markdown, write_section
from benchmarks.servers import connect, value
from harness.leftovers import end_with_this_process
from harness.processes import free_port
from pgque_dagster import installer
from pgque_dagster.client import Batch, Client, plans
from pgque_dagster.client.models import Slice
from pgque_dagster.spark import DatabaseAddress, SparkBatch, register
from pgque_dagster.spark.batch import DRIVER_SIDE_EVENTS
from pgque_dagster.spark.reading import arrow
from tests.support.servers.postgres import DEBIAN_VERSION, Postgres

EVENTS = 2_000_000
SLICES = (1, 2, 4)
ORDER = "id bigint, customer bigint, total double"

_JAR = Path("/usr/share/java/postgresql.jar")
_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_SEND = """
select cardinality(pgque.send_batch(%s, 'order', array(
    select format('{"id": %%s, "customer": %%s, "total": %%s.25, "note": "%%s"}',
                  x, x %% 1000, x %% 977, rpad('', 120, md5(x::text)))
    from generate_series(%s::integer, %s::integer) x)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=7, help="number of rounds, after a warm-up round"
    )
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument(
        "--memory", action="store_true", help="also read batches of 1M and 10M events"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/benchmarks.md"
    )
    options = parser.parse_args()
    results: list[Result] = []
    with server() as running:
        url = running.database_url("bench")
        large = fill(url, "large", options.events)
        small = fill(url, "small", 100)
        tcp = tcp_url(running)
        with session() as spark:
            results += reads(spark, running, tcp, large, options.rounds)
            results += typed(spark, tcp, large, options.rounds)
            results += small_batch(spark, tcp, small, options.rounds)
            results += spark_write.measure(spark, tcp, options.rounds)
        if options.memory:
            results.append(spark_memory.measure(tcp, fill))
    table = to_markdown(results)
    print(table)
    if options.write:
        write_section(_REPORT, "spark", table)


@contextmanager
def server() -> Iterator[Postgres]:
    """Runs a server with a database `bench` while the block runs, over TCP for Java and psql."""
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "max_wal_size": "8GB",
        "checkpoint_timeout": "30min",
        "wal_level": "logical",
    }
    with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
        os.environ["PGPORT"] = str(port)
        with Postgres(Path(folder) / "postgres", DEBIAN_VERSION, **settings) as running:
            # Over TCP, the cluster asks for a password, which no role has.
            trusted = "local all all trust\nhost all all 127.0.0.1/32 trust\n"
            (running.data / "pg_hba.conf").write_text(trusted)
            with connect(running.url) as connection:
                connection.execute("select pg_reload_conf()")
                connection.execute("create database bench")
            installer.install(running.database_url("bench"))
            yield running


def tcp_url(running: Postgres) -> str:
    """Returns the URL of the database over TCP, for all contenders."""
    return f"postgresql://postgres@127.0.0.1:{os.environ['PGPORT']}/bench"


@contextmanager
def session() -> Iterator[SparkSession]:
    """Runs a Spark session while the block runs."""
    if not _JAR.is_file():
        raise SystemExit("the JDBC driver is missing: apt install libpostgresql-jdbc-java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", str(_JAR))
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    yield spark
    spark.stop()


def fill(url: str, queue: str, events: int) -> int:
    """Creates a queue with an open batch of events of about 185 bytes; returns the batch's id."""
    step = 100_000
    with connect(url) as connection:
        value(connection, "select pgque.create_queue(%s)", queue)
        value(connection, "select pgque.register_consumer(%s, 'bench')", queue)
        for first in range(1, events + 1, step):
            value(connection, _SEND, queue, first, min(first + step - 1, events))
        value(connection, "select pgque.force_next_tick(%s)", queue)
        value(connection, "select pgque.ticker(%s)", queue)
        # Sets hint bits, so that the first read does not write.
        connection.execute("vacuum")
        connection.execute("checkpoint")
        batch: int = value(connection, "select pgque.next_batch(%s, 'bench')", queue)
    return batch


def reads(
    spark: SparkSession, running: Postgres, url: str, batch_id: int, rounds: int
) -> list[Result]:
    """Measures reading the whole large batch."""
    with Client(url) as client:
        slices = {count: client.run(plans.read_plan(batch_id, count)).slices for count in SLICES}
    contenders = [
        each
        for count, parts in slices.items()
        for each in (
            Contender(f"ours {count}", lambda s=parts: timed(lambda: drain(read(spark, url, s)))),
            Contender(
                f"jdbc {count}",
                lambda s=parts: timed(
                    lambda: drain(jdbc.read_slices(spark, url, s, arrow.EVENT_COLUMNS))
                ),
            ),
        )
    ]
    contenders += [
        Contender("psql", lambda: timed(lambda: copy(running, url, slices[1][0]))),
    ]
    found = medians(contenders, rounds)
    return [
        *(
            _ratio(
                f"read all columns, {count} slices" if count > 1 else "one slice",
                "Spark JDBC, same slices",
                found[f"jdbc {count}"],
                found[f"ours {count}"],
                1.2 if count == 2 else None,
            )
            for count in SLICES
        ),
        _ratio(
            "read all columns, 1 slice",
            "psql \\copy binary",
            found["psql"],
            found["ours 1"],
            0.9,
        ),
    ]


def typed(spark: SparkSession, url: str, batch_id: int, rounds: int) -> list[Result]:
    """Measures reading the payloads of the large batch with payload() and with from_json."""
    with Client(url) as client:
        batch = _claimed(client, "large", batch_id)
        slices = client.run(plans.read_plan(batch_id, 2)).slices

        def by_payload(*, in_step: bool) -> float:
            reading = SparkBatch(spark, batch, url, slices=2)
            reading.settles_late = in_step
            # Plans the read before the measurement, as for the other contenders.
            assert reading.event_count > DRIVER_SIDE_EVENTS, "the driver reads so few itself"

            def settled() -> None:
                totals(reading.payload(ORDER))
                batch.run_checks()

            cost = timed(settled)
            reading.close()
            return cost

        def by_jdbc() -> None:
            totals(parsed(jdbc.read_slices(spark, url, slices, ["ev_data"])))

        found = medians(
            [
                Contender("in a step", lambda: by_payload(in_step=True)),
                Contender("at the call", lambda: by_payload(in_step=False)),
                Contender(
                    "from_json",
                    lambda: timed(lambda: totals(parsed(read(spark, url, slices, "ev_data")))),
                ),
                Contender("jdbc", lambda: timed(by_jdbc)),
            ],
            rounds,
        )
    rival = "Spark JDBC + from_json, same slices"
    return [
        _ratio(
            "payload(schema) and groupBy, checked before publishing, 2 slices",
            rival,
            found["jdbc"],
            found["in a step"],
            1.5,
        ),
        _ratio(
            "payload(schema) and groupBy, checked at the call, 2 slices",
            rival,
            found["jdbc"],
            found["at the call"],
            1.2,
        ),
        _ratio("from_json and groupBy, 2 slices", rival, found["jdbc"], found["from_json"], 1.3),
    ]


def small_batch(spark: SparkSession, url: str, batch_id: int, rounds: int) -> list[Result]:
    """Measures planning and reading a batch of 100 events on the driver and in the data source."""
    with Client(url) as client:
        batch = _claimed(client, "small", batch_id)

        def by_driver() -> None:
            SparkBatch(spark, batch, url).events().collect()

        def by_source() -> None:
            options = {"url": url, "batch_id": str(batch_id)}
            spark.read.format("pgque").options(**options).load().collect()

        found = medians(
            [
                Contender("driver", lambda: timed(by_driver, 5)),
                Contender("source", lambda: timed(by_source, 5)),
            ],
            rounds,
        )
    return [
        Result(
            what="100-event batch, time",
            against="the same through the data source",
            figure=found["driver"] / found["source"],
            better="<=",
            target=0.5,
            detail=f"{found['driver'] * 1e3:.0f}/{found['source'] * 1e3:.0f} ms",
        )
    ]


def read(spark: SparkSession, url: str, slices: tuple[Slice, ...], columns: str = "") -> DataFrame:
    wanted = arrow.parse_columns(columns)
    return arrow.read_slices(spark, DatabaseAddress(url), slices, wanted)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def parsed(events: DataFrame) -> DataFrame:
    return events.select(f.from_json("ev_data", ORDER).alias("order")).select("order.*")


def totals(orders: DataFrame) -> None:
    orders.groupBy("customer").agg(f.sum("total")).collect()


def copy(running: Postgres, url: str, part: Slice) -> None:
    command = f"\\copy ({part.sql}) to /dev/null with (format binary)"
    subprocess.run([running.binary("psql"), url, "-qc", command], check=True)


def _claimed(client: Client, queue: str, batch_id: int) -> Batch:
    batch = client.claim(queue, "bench", owner="benchmark", batch_id=batch_id)
    assert batch is not None
    return batch


def _ratio(what: str, against: str, rival: float, ours: float, target: float | None) -> Result:
    return Result(what, against, rival / ours, ">=", target, f"{ours:.2f}/{rival:.2f} s")


if __name__ == "__main__":
    end_with_this_process()
    main()
