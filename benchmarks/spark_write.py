"""What publishing a DataFrame costs beside Spark's JDBC append to a plain table."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import connect, value

EVENTS = 1_000_000
_QUEUE = "written"


def measure(spark: SparkSession, url: str, rounds: int, events: int = EVENTS) -> Result:
    """Returns the line on writing. `url` is one that Java can be given, too: over TCP."""
    with connect(url) as connection:
        connection.execute("create table plain (type text, data text)")
        value(connection, "select pgque.create_queue(%s)", _QUEUE)
        tables = [value(connection, "select pgque.current_event_table(%s)", _QUEUE), "plain"]
        frame = _events(spark, events)

        def ours() -> float:
            connection.execute(f"truncate {', '.join(tables)}".encode())
            return timed(lambda: _publish(frame, url))

        def jdbc() -> float:
            connection.execute(f"truncate {', '.join(tables)}".encode())
            return timed(lambda: _append(frame, url))

        found = medians([Contender("ours", ours), Contender("jdbc", jdbc)], rounds)
        frame.unpersist()
    return Result(
        f"Spark: write {events:,} events, 2 partitions",
        "Spark JDBC append to a plain table",
        found["jdbc"] / found["ours"],
        ">=",
        1.5,
        f"{found['ours']:.2f} against {found['jdbc']:.2f} s",
    )


def _events(spark: SparkSession, count: int) -> DataFrame:
    """Events of about 185 bytes, kept by Spark so that making them is not measured."""
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


def _append(frame: DataFrame, url: str) -> None:
    user, _, host = url.partition("://")[2].rpartition("@")
    frame.write.format("jdbc").options(
        url=f"jdbc:postgresql://{host}",
        dbtable="plain",
        user=user,
        driver="org.postgresql.Driver",
    ).mode("append").save()
