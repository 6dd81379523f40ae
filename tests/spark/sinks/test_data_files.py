"""Files that tasks write by Arrow hold what files of Spark's own writer hold."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.sinks.files.data_files import write_files
from pgque_dagster.spark.sinks.files.file_reader import ListedFile, read_table_files
from pgque_dagster.spark.sinks.files.storage import Storage, StorageFailed
from tests.support.servers.s3 import S3
from tests.support.spark.jobs import jobs_of

VALUES = {
    "tinyint": "cast(-128 as tinyint)",
    "smallint": "cast(-32768 as smallint)",
    "int": "-2147483648",
    "bigint": "9223372036854775807L",
    "float": "cast(0.1 as float)",
    "not a number": "cast('NaN' as double)",
    "minus zero": "-0.0D",
    "small decimal": "cast(-1.25 as decimal(9, 2))",
    "large decimal": "cast('1234567890123456789012345678.9012345678' as decimal(38, 10))",
    "string": "'täxt'",
    "varchar": "cast('x' as varchar(5))",
    "binary": "X'00ff'",
    "boolean": "false",
    "date": "date'9999-12-31'",
    "old date": "date'0001-01-01'",
    "timestamp": "timestamp'2024-03-31 01:30:00.123456'",
    "old timestamp": "timestamp'1582-10-10 00:00:00.000001'",
    "timestamp without zone": "timestamp_ntz'2024-03-31 02:30:00.123456'",
    "interval": "interval '-1 02:03:04.5' day to second",
    "interval of hours": "interval '5' hour",
    "variant": """parse_json('{"a": [1, "x", null]}')""",
    "array": "array(1, null)",
    "map": "map('a', array(timestamp'2024-01-01 00:00:00'), 'b', null)",
    "struct": "struct(1 as a, struct(cast(1.5 as decimal(5, 2)) as b, X'01' as c) as d)",
    "array of structs": "array(struct(date'2024-01-01' as a), null)",
    "empty array": "slice(array(1), 1, 0)",
    "empty map": "map_filter(map(1, 2), (k, v) -> false)",
}
ROWS = 400


@pytest.fixture
def zone(spark: SparkSession) -> object:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def test_spark_reads_types_and_values_as_from_files_of_its_own(
    spark: SparkSession, tmp_path: Path, zone: None
) -> None:
    columns = [f"{value} as `{name}`" for name, value in VALUES.items()]
    nulls = [f"if(id = 1, {value}, null) as `{name} or null`" for name, value in VALUES.items()]
    frame = spark.range(2).selectExpr("id", *columns, *nulls)

    own, ours = by_spark(frame, tmp_path), by_tasks(frame, tmp_path)

    assert ours.schema == own.schema
    assert as_text(ours) == as_text(own)


def test_arrow_reads_what_it_reads_from_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    # Spark stores timestamps in nanoseconds of an unknown zone, which Arrow cannot hold before
    # 1678; ours say that they are UTC. It does not read variants.
    others = {
        name: value
        for name, value in VALUES.items()
        if "timestamp" not in name and name not in ("map", "variant")
    }
    frame = spark.range(2).selectExpr(
        "id", *(f"if(id = 1, {value}, null) as `{name}`" for name, value in others.items())
    )

    by_spark(frame, tmp_path)
    by_tasks(frame, tmp_path)

    own, ours = (pq.read_table(tmp_path / name).sort_by("id") for name in ("own", "ours"))
    assert shown(ours.schema) == shown(own.schema)
    for name in others:
        assert list(map(str, ours[name])) == list(map(str, own[name])), name


def test_timestamps_with_a_zone_are_microseconds_of_utc(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql("select timestamp_micros(1) as at, timestamp_ntz'2024-01-01 00:00:00' as ntz")
    by_tasks(frame, tmp_path)

    table = pq.read_table(tmp_path / "ours")

    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table["at"].cast(pa.int64()).to_pylist() == [1]
    assert table.schema.field("ntz").type == pa.timestamp("us")


def test_columns_that_no_file_can_hold_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    for value, told in {
        "null as total": "void",
        "interval '1-2' year to month as total": "interval year to month",
        "make_interval(1) as total": "interval",
        "array(struct(null as inner)) as total": "void",
        "map(1, interval '2' month) as total": "interval month",
        "1 as total, 1 as Total": None,
    }.items():
        message = rf"column total.* is {told}, which Parquet files" if told else "total and Total"
        with pytest.raises(InvalidArgument, match=message):
            write_files(spark.sql(f"select 1 as id, {value}"), Storage.of(tmp_path), "files")

    assert list(tmp_path.rglob("*.parquet")) == []


def test_files_say_how_many_rows_and_bytes_they_have(spark: SparkSession, tmp_path: Path) -> None:
    files = write_files(spark.range(ROWS).repartition(3), Storage.of(tmp_path), "files")

    assert sum(file.rows for file in files) == ROWS
    for file in files:
        stored = pq.read_metadata(tmp_path / file.path)
        assert file.size == (tmp_path / file.path).stat().st_size
        assert file.rows == stored.num_rows == file.metadata.num_rows
        statistics = file.metadata.row_group(0).column(0).statistics
        assert statistics.min == stored.row_group(0).column(0).statistics.min
    assert sorted(pq.read_table(tmp_path / "files")["id"].to_pylist()) == list(range(ROWS))


def test_decimals_are_numbers_in_files_as_in_those_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    digits = (9, 10, 18, 19)
    frame = spark.sql(
        "select " + ", ".join(f"cast(-1.25 as decimal({each}, 2)) as d{each}" for each in digits)
    )

    by_spark(frame, tmp_path)
    by_tasks(frame, tmp_path)

    own, ours = (
        pq.ParquetFile(next((tmp_path / name).glob("*.parquet"))).schema for name in ("own", "ours")
    )
    kinds = [[file.column(place).physical_type for place in range(4)] for file in (own, ours)]
    assert kinds[1] == kinds[0] == ["INT32", "INT64", "INT64", "FIXED_LEN_BYTE_ARRAY"]


def test_a_column_with_one_value_is_in_all_rows_of_the_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(3).repartition(2)

    write_files(frame, Storage.of(tmp_path), "files", batch_id=2**40)

    stored = spark.read.parquet(str(tmp_path / "files"))
    assert stored.columns == ["id", "batch_id"]
    assert sorted(stored.collect()) == [(n, 2**40) for n in range(3)]


def test_a_table_of_many_files_is_listed_without_a_job(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storage = Storage.of(tmp_path)
    frame = spark.range(0, 4, 1, 4)
    files = write_files(frame, storage, "files")
    listed = [ListedFile(file.path, file.size) for file in files]
    threshold = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(threshold)
    request.addfinalizer(lambda: spark.conf.set(threshold, before))
    spark.conf.set(threshold, "2")
    spark.sparkContext.setJobGroup("listing", "what reading files runs")

    table = read_table_files(spark, storage, listed, frame.schema)

    assert jobs_of(spark, "listing") == []
    assert table.count() == len(files) == 4
    assert spark.conf.get(threshold) == "2"


def test_no_rows_are_no_files(spark: SparkSession, tmp_path: Path) -> None:
    assert write_files(spark.range(0), Storage.of(tmp_path), "files") == []


def test_a_task_writes_one_file_with_a_row_group_for_each_64_mib_of_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = 25_000
    wide = spark.range(0, rows, 1, 1).selectExpr("id", "repeat(md5(cast(id as string)), 110) as a")

    (file,) = write_files(wide, Storage.of(tmp_path), "files")

    assert file.metadata.num_row_groups == 2
    assert file.rows == rows


def test_a_task_that_fails_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(ROWS).selectExpr("raise_error('the cause') as total", "id")

    with pytest.raises(Exception, match="the cause"):
        write_files(frame.selectExpr("cast(total as string) as total"), Storage.of(tmp_path), "f")

    assert list(tmp_path.rglob("*.parquet")) == []


def test_files_are_written_to_an_object_store_and_errors_show_no_secret(
    spark: SparkSession, s3: S3
) -> None:
    storage = Storage.of(s3.url("files"), s3.options)

    files = write_files(spark.range(ROWS).repartition(3), storage, "attempt")

    rows = [row for file in files for row in s3.read_parquet(f"files/{file.path}").to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    storage.remove([file.path for file in files])
    assert s3.names("files/") == []
    missing = Storage.of("s3://no-such-bucket/files", s3.options)
    with pytest.raises(StorageFailed, match="s3://no-such-bucket/files cannot be written") as told:
        write_files(spark.range(ROWS), missing, "attempt")
    assert s3.secret not in str(told.value) + repr(missing)


def test_a_url_of_an_unknown_kind_or_with_credentials_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"no access to hdfs: URLs.*Mount other file systems"):
        Storage.of("hdfs://name/files")
    with pytest.raises(InvalidArgument, match="storage_options") as told:
        Storage.of("s3://key:hidden@bucket/files?secret=hidden")

    assert "hidden" not in str(told.value)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(spark: SparkSession) -> None:
    with pytest.raises(StorageFailed, match=r"/dev/full cannot be written: .*next attempt"):
        write_files(spark.range(ROWS), Storage.of("/dev/full"), "files")


def by_spark(frame: DataFrame, folder: Path) -> DataFrame:
    frame.write.mode("overwrite").parquet(str(folder / "own"))
    return frame.sparkSession.read.parquet(str(folder / "own"))


def by_tasks(frame: DataFrame, folder: Path) -> DataFrame:
    write_files(frame, Storage.of(folder), "ours")
    return frame.sparkSession.read.parquet(str(folder / "ours"))


def shown(schema: pa.Schema) -> str:
    """Names and types; all columns of Spark's tables may be null, whatever its files say."""
    return str(schema.remove_metadata()).replace(" not null", "")


def as_text(frame: DataFrame) -> list[str]:
    return sorted(str(row.asDict(recursive=True)) for row in frame.collect())
