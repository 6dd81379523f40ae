"""The roles that the page has as statements suffice: at the source, at the target, and to write."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PostgresReplicas
from tests.conftest import Server
from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import as_user, empty_database

PAGE = Path(__file__).parents[3] / "docs/replicas.md"
TABLES = ["sales.orders", "sales.customers"]
ROLES = ("replicator", "loader", "shop_owner", "clerk")
# What is there before: tables of an owner, and a role that may write to them, and nothing else.
SETUP = """
create role shop_owner login; create role clerk login; grant create on schema public to shop_owner;
create schema sales authorization shop_owner; set role shop_owner;
create table sales.orders (id int primary key, total numeric(9,2), up int references sales.orders);
create table sales.customers (id int primary key, name text);
grant usage on schema sales to clerk;
grant select, insert, update, delete, truncate on all tables in schema sales to clerk;
insert into sales.orders values (1, 9.5); reset role
"""
OWNED = """
alter schema sales owner to replicator; alter table sales.orders owner to replicator;
alter table sales.customers owner to replicator
"""


def scripts() -> dict[str, str]:
    """The statements of the page, by the comments before them."""
    (chapter,) = re.findall(r"^## Roles$(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    blocks = "".join(re.findall(r"```sql\n(.*?)```", chapter, re.DOTALL))
    parts = re.split(r"^-- (.*)\n", blocks, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture
def admin(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as db:
        db.execute(SETUP.encode())
        yield db
        for role in ROLES:
            if db.rows("select from pg_roles where rolname = %s", role):
                db.execute(f"drop owned by {role} cascade; drop role {role}".encode())


@pytest.mark.parametrize("owns", [True, False], ids=["owns the tables", "does not"])
def test_the_roles_of_the_page_are_enough(
    admin: Connection, owns: bool, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    told = scripts()
    with empty_database(server) as warehouse, connect(warehouse) as target:
        name = warehouse.rpartition("/")[2].partition("?")[0]
        loading = told["At the target, as its owner"].replace("warehouse", f'"{name}"')
        target.execute(loading.encode())
        if owns:
            admin.execute(told["At the source, if Dagster's role owns the tables"].encode())
            admin.execute(OWNED.encode())
        else:
            admin.execute(told["Or if it does not: as an administrator"].encode())
            with connect(as_user(admin.url, "shop_owner")) as owner:
                owner.execute(told["and as the owner of the tables and their schema"].encode())
            admin.execute("revoke pgque_writer from shop_owner")
        loader = PostgresReplicas(as_user(warehouse, "loader"))
        shop = Shop(as_user(admin.url, "replicator"), spark, tmp_path, TABLES, target=loader)
        shop.url = admin.url  # whoever ticks
        shop.capture()
        assert shop.run().success

        with connect(as_user(admin.url, "clerk")) as clerk:
            clerk.execute("insert into sales.orders values (2, 1, 1); delete from sales.orders")
            clerk.execute("truncate sales.customers; insert into sales.customers values (7, 'x')")
        assert shop.run().success

        evaluations = shop.verify()
        assert all(each.passed for each in evaluations), evaluations
        for table in TABLES:
            read = f"select * from {table} order by 1"
            assert target.rows(read) == admin.rows(read)
        target.execute("drop owned by loader cascade")
