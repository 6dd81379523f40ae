"""What a login needs to keep results in Postgres, and what it is told when it lacks that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument, PermissionDenied
from pgque_dagster.client.sharded_claim import ShardedClaim
from pgque_dagster.spark import PostgresSink, ShardedBatch, SparkBatch, once_per_batch
from tests.conftest import Server
from tests.support.queues.events import claim, make_queue, publish
from tests.support.queues.sql import connect, rows
from tests.support.servers.databases import empty_database
from tests.support.servers.logins import as_login

TABLE = """
create schema sales;
create table sales.revenue (product text primary key, total bigint);
grant usage on schema sales to login_reader;
"""
ALL = "grant select, insert, update on sales.revenue to login_reader"
STAGING = "create schema staging; grant usage, create on schema staging to login_reader"
ADD: dict[str, Any] = {"key": ["product"], "mode": "add"}


def run(url: str, *statements: str) -> None:
    """Runs statements as the administrator."""
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A login that may consume, in a database with a table that is not its own."""
    with Client(database_url) as owner:
        make_queue(owner)
        publish(owner, ["a"])
    with Client(as_login(database_url, "pgque_reader")) as login:
        run(database_url, TABLE)
        yield login


@pytest.fixture
def elsewhere(server: Server, client: Client) -> Iterator[str]:
    """Another database with the same table, which the login may change."""
    with empty_database(server) as url:
        run(url, TABLE, ALL)
        yield url


def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("tea", 4), ("tea", 5)], "product string, total bigint")


def frame_that_must_not_be_computed(spark: SparkSession) -> DataFrame:
    return spark.sql("select 'tea' as product, bigint(raise_error('Spark worked')) as total")


def spark_batch(client: Client, spark: SparkSession) -> SparkBatch:
    return SparkBatch(spark, claim(client), client.url)


def found(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select product, total from sales.revenue")


def refused(
    client: Client, spark: SparkSession, sink: PostgresSink, why: Any = PermissionDenied
) -> str:
    with pytest.raises(why) as denied:
        sink.write(spark_batch(client, spark), frame_that_must_not_be_computed(spark))
    return str(denied.value)


def test_with_a_schema_for_stages_nothing_is_created_beside_the_table(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    run(database_url, ALL, STAGING)
    batch = claim(client)

    PostgresSink("sales.revenue", stage_schema="staging", **ADD).write(
        SparkBatch(spark, batch, client.url), frame(spark)
    )
    batch.ack()

    assert found(database_url) == [("tea", 9)]
    with connect(database_url) as db:
        assert rows(db, "select relname from pg_class where relname ~ '^pgque_stage'") == []


def test_rows_that_are_only_appended_need_no_more_than_insert(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    run(database_url, "grant insert on sales.revenue to login_reader", STAGING)
    batch = claim(client)

    PostgresSink("sales.revenue", stage_schema="staging").write(
        SparkBatch(spark, batch, client.url), frame(spark).distinct().limit(1)
    )
    batch.ack()

    assert len(found(database_url)) == 1


BOTH_WAYS = (
    'role "login_reader" lacks USAGE, CREATE on schema "sales", where rows for '
    '"sales"."revenue" are staged. Let its owner run: '
    'grant usage, create on schema "sales" to "login_reader"; or pass as '
    "stage_schema a schema in which the role may create tables."
)
UPSERT = {**ADD, "mode": "upsert"}


def test_the_rights_in_the_documentation_are_enough_for_a_queue_over_several_databases(
    client: Client, server: Server, spark: SparkSession
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "writing.md").read_text()
    (statements,) = (each for each in page.split("```") if "create schema staging" in each)
    with empty_database(server) as url:
        run(url, TABLE.replace("grant usage on schema sales to login_reader;", ""))
        run(url, statements.removeprefix("sql").replace("pipeline", "login_reader"))
        batch = claim(client)
        sink = PostgresSink(
            "sales.revenue", url=as_login(url, "pgque_reader"), stage_schema="staging", **ADD
        )
        vector = ShardedClaim({"eu": batch})
        assert sink.stored(vector) == {}

        sink.write(ShardedBatch(vector, {"eu": SparkBatch(spark, batch, client.url)}), frame(spark))

        assert found(url) == [("tea", 9)]
        assert sink.stored(vector) == {"eu": vector.batch_id}


@pytest.mark.parametrize(
    ("statements", "options", "told"),
    [
        ([ALL], {"stage_schema": None}, BOTH_WAYS),
        ([ALL, "create schema staging"], {}, 'grant usage, create on schema "staging" to "login_'),
        ([ALL], {}, 'schema "staging" does not exist. Create the schema first'),
        ([STAGING, "grant update, select {}"], {}, 'grant insert on "sales"."revenue" to "login_'),
        ([STAGING, "grant insert {}"], ADD, 'grant select, insert, update on "sales"."revenue" to'),
        ([STAGING, "grant insert, select {}"], UPSERT, "grant select, insert, update on "),
        ([ALL, STAGING, "revoke usage on schema sales from login_reader"], {},
         'grant usage on schema sales to "login_reader";'),
    ],
)  # fmt: skip
def test_who_lacks_a_right_is_told_the_grant_before_spark_works(
    client: Client,
    database_url: str,
    spark: SparkSession,
    statements: list[str],
    options: dict[str, Any],
    told: str,
) -> None:
    on = "on sales.revenue to login_reader"
    run(database_url, *(statement.format(on) for statement in statements))
    sink = PostgresSink("sales.revenue", **{"stage_schema": "staging", **options})

    assert told in refused(client, spark, sink, (PermissionDenied, InvalidArgument))

    with connect(database_url) as db:
        assert rows(db, "select relname from pg_class where relname ~ '^pgque_stage'") == []


def statements_in(told: str) -> list[str]:
    """The statements after the one that grants CREATE, which make the ledger without it."""
    return [f"{part};" for part in told.partition(" or: ")[2].split(";") if part.strip()]


def test_a_ledger_that_is_missing_comes_with_the_statements_that_make_it(
    client: Client, elsewhere: str, spark: SparkSession
) -> None:
    run(elsewhere, STAGING)
    url = as_login(elsewhere, "pgque_reader")
    sink = PostgresSink("sales.revenue", stage_schema="staging", url=url, **ADD)

    told = refused(client, spark, sink)
    assert 'role "login_reader" lacks CREATE on schema "sales", where the ledger' in told
    run(elsewhere, *statements_in(told))
    sink.write(spark_batch(client, spark), frame(spark))

    assert found(elsewhere) == [("tea", 9)]


def test_an_effect_of_once_per_batch_names_the_ledger_that_is_missing(
    client: Client, elsewhere: str, spark: SparkSession
) -> None:
    run(elsewhere, "revoke create on schema public from public")
    once = once_per_batch(
        as_login(elsewhere, "pgque_reader"), "effect", lambda *given: None, query="a query"
    )

    with pytest.raises(PermissionDenied, match=r'create table "public"\."pgque_sink_ledger"'):
        once(frame(spark), 0)


def test_a_ledger_that_may_not_be_written_is_told_the_grant(
    client: Client, elsewhere: str, spark: SparkSession
) -> None:
    run(
        elsewhere,
        STAGING,
        "create table sales.pgque_sink_ledger (sink text, batch text, "
        "applied_at timestamptz not null default now(), primary key (sink, batch))",
        "grant select on sales.pgque_sink_ledger to login_reader",
    )
    sink = PostgresSink(
        "sales.revenue", stage_schema="staging", url=as_login(elsewhere, "pgque_reader")
    )

    told = refused(client, spark, sink)

    assert 'grant select, insert on "sales"."pgque_sink_ledger" to "login_reader";' in told


REFUSALS = {
    "row-level security policy": [
        "create policy small on sales.revenue using (true) with check (total < 5)",
        "alter table sales.revenue enable row level security",
    ],
    "permission denied for table audit": [
        "create table sales.audit (product text)",
        "create function sales.note() returns trigger language plpgsql as "
        "$$ begin insert into sales.audit values (new.product); return new; end $$",
        "create trigger note before insert on sales.revenue "
        "for each row execute function sales.note()",
    ],
}


@pytest.mark.parametrize("message", list(REFUSALS))
def test_a_refusal_that_is_no_right_on_the_table_is_told_in_the_servers_words(
    client: Client, database_url: str, spark: SparkSession, message: str
) -> None:
    run(database_url, ALL, STAGING, *REFUSALS[message])
    batch = claim(client)
    PostgresSink("sales.revenue", stage_schema="staging", **ADD).write(
        SparkBatch(spark, batch, client.url), frame(spark)
    )

    with pytest.raises(PermissionDenied, match=message) as denied:
        batch.ack()

    assert "grant" not in str(denied.value)
    assert found(database_url) == []
