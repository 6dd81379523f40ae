"""Measures publishing a DataFrame against Spark's JDBC append to a plain table."""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import connect, value

EVENTS = 1_000_000
_QUEUE = "written"


def measure(spark: SparkSession, url: str, rounds: int, events: int = EVENTS) -> list[Result]:
    """Returns the results for writing. `url` is a URL over TCP, so that Java can use it."""
    with connect(url) as connection:
        value(connection, "select pgque.create_queue(%s)", _QUEUE)
        table = value(connection, "select pgque.current_event_table(%s)", _QUEUE)
        connection.execute("create table plain (type text, data text)")
        connection.execute("create unlogged table staged (type text, data text)")
        connection.execute(f"create table published (like {table} including all)".encode())
        frame = _events(spark, events)

        def once_empty(write: Callable[[], None]) -> Callable[[], float]:
            def cost() -> float:
                connection.execute(f"truncate {table}, plain, staged, published".encode())
                return timed(write)

            return cost

        def in_two_steps() -> None:
            _append(frame, url, "staged")
            connection.execute(
                "insert into published (ev_type, ev_data) select type, data from staged"
            )

        found = medians(
            [
                Contender("ours", once_empty(lambda: _publish(frame, url))),
                Contender("jdbc", once_empty(lambda: _append(frame, url, "plain"))),
                Contender("jdbc in two steps", once_empty(in_two_steps)),
            ],
            rounds,
        )
        frame.unpersist()
    return [
        Result(
            f"write {events:,} events, 2 partitions",
            against,
            found[rival] / found["ours"],
            ">=",
            target,
            f"{found['ours']:.2f}/{found[rival]:.2f} s",
        )
        for rival, against, target in (
            ("jdbc", "Spark JDBC append to a plain table", 1.2),
            ("jdbc in two steps", "the same in two steps, as ours", None),
        )
    ]


def _events(spark: SparkSession, count: int) -> DataFrame:
    """Returns events of about 185 bytes, persisted so that computing them is not measured."""
    payload = f.format_string(
        '{"id": %d, "customer": %d, "total": %d.25, "note": "%s"}',
        "id",
        f.col("id") % 1000,
        f.col("id") % 977,
        f.rpad(f.md5(f.col("id").cast("string")), 120, "0123456789abcdef"),
    )
    frame = spark.range(count, numPartitions=2).select(
        f.lit("order").alias("type"), payload.alias("data")
    )
    frame.persist().count()
    return frame


def _publish(frame: DataFrame, url: str) -> None:
    frame.write.format("pgque").options(url=url, queue=_QUEUE).mode("append").save()


def _append(frame: DataFrame, url: str, table: str) -> None:
    user, _, host = url.partition("://")[2].rpartition("@")
    frame.write.format("jdbc").options(
        url=f"jdbc:postgresql://{host}",
        dbtable=table,
        user=user,
        driver="org.postgresql.Driver",
    ).mode("append").save()
