"""A producer sends within the application's own transaction, whatever library made it."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import django
import django.db.transaction
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db.utils import ConnectionHandler
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from pgque_dagster.client import AsyncClient, Client, ConnectionFailed, InvalidArgument
from tests.support.queues import Connection, make_queue, tick


@pytest.fixture(autouse=True)
def tables(db: Connection) -> None:
    make_queue(db)
    db.execute("create table shop (id int)")


def stored(db: Connection) -> tuple[int, int]:
    """How many rows the application's table and the queue have."""
    ((shop, events),) = db.execute(
        "select (select count(*) from shop), (select count(*) from pgque.event)"
    ).fetchall()
    return shop, events


class TestPsycopg:
    def test_the_callers_commit_sends_the_event(self, database_url: str, db: Connection) -> None:
        with psycopg.connect(database_url) as connection:
            connection.execute("insert into shop values (1)")
            Client(connection).send("q", "a")
            assert stored(db) == (0, 0)
            connection.commit()
            assert stored(db) == (1, 1)

    def test_the_callers_rollback_sends_nothing(self, database_url: str, db: Connection) -> None:
        with psycopg.connect(database_url) as connection:
            connection.execute("insert into shop values (1)")
            Client(connection).copy_events("q", ["a"])
            connection.rollback()
        assert stored(db) == (0, 0)

    def test_a_call_of_several_steps_leaves_the_commit_to_the_caller(
        self, database_url: str, db: Connection
    ) -> None:
        with psycopg.connect(database_url) as connection:
            Client(connection).copy_events("q", ["a"])
            assert stored(db) == (0, 0)
            connection.commit()
        assert stored(db) == (0, 1)

    def test_a_connection_with_other_rows_is_read(self, database_url: str, db: Connection) -> None:
        with psycopg.connect(
            database_url,
            autocommit=True,
            row_factory=dict_row,
            cursor_factory=psycopg.ClientCursor,
        ) as connection:
            client = Client(connection)
            assert client.send_batch("q", ["a", "b"]) == [1, 2]
            tick(db)
            batch = client.claim("q", "c", owner="me")
            assert batch is not None
            with batch.keep_alive():
                batch.ack()

    @pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
    def test_events_are_copied_whatever_the_encoding_of_the_connection(
        self, database_url: str, db: Connection, encoding: str
    ) -> None:
        with psycopg.connect(database_url, client_encoding=encoding) as connection:
            assert Client(connection).copy_events("q", ["\u00e9"]) == 1
        assert db.execute("select ev_data from pgque.event").fetchall() == [("\u00e9",)]

    @pytest.mark.parametrize(
        ("setting", "read"),
        [
            ("datestyle=german", lambda client: client.receive("q", "c")),
            ("intervalstyle=iso_8601", lambda client: client.consumers("q")),
        ],
        ids=["date", "interval"],
    )
    def test_a_style_that_cannot_be_read_is_named_with_a_way_out(
        self, database_url: str, db: Connection, setting: str, read: Callable[[Client], object]
    ) -> None:
        with psycopg.connect(database_url, autocommit=True, options=f"-c {setting}") as connection:
            client = Client(connection)
            client.send("q", "a")
            tick(db)
            with pytest.raises(InvalidArgument, match="set datestyle to iso"):
                read(client)

    def test_a_lease_is_not_kept_alive_before_its_claim_is_committed(
        self, database_url: str, db: Connection
    ) -> None:
        with psycopg.connect(database_url) as connection:
            client = Client(connection)
            client.send("q", "a")
            connection.commit()
            tick(db)
            batch = client.claim("q", "c", owner="me")
            assert batch is not None
            with pytest.raises(InvalidArgument, match="Commit"), batch.keep_alive():
                pass
            connection.commit()
            with batch.keep_alive():
                batch.events()
            batch.ack()

    def test_a_lease_of_a_task_is_not_kept_alive_before_its_claim_is_committed(
        self, database_url: str, db: Connection
    ) -> None:
        async def main() -> None:
            async with await psycopg.AsyncConnection.connect(database_url) as connection:
                batch = await AsyncClient(connection).claim("q", "c", owner="me")
                assert batch is not None
                with pytest.raises(InvalidArgument, match="Commit"):
                    async with batch.keep_alive():
                        pass

        Client(database_url).send("q", "a")
        tick(db)
        asyncio.run(main())

    def test_the_client_leaves_a_given_connection_open(self, database_url: str) -> None:
        with psycopg.connect(database_url) as connection:
            with Client(connection):
                pass
            assert not connection.closed

    def test_what_is_no_connection_is_refused_by_name(self) -> None:
        with pytest.raises(InvalidArgument, match="Engine is no URL"):
            Client(sa.create_engine("sqlite://"))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="Engine is no URL"):
            AsyncClient(sa.create_engine("sqlite://"))  # type: ignore[arg-type]


class TestPool:
    def test_each_call_borrows_a_connection(self, database_url: str, db: Connection) -> None:
        with ConnectionPool(database_url, min_size=1, max_size=2, open=True) as pool:
            client = Client(pool)
            client.send("q", "a")
            with pytest.raises(RuntimeError), client.transaction() as connection:
                connection.execute("insert into shop values (1)")
                client.send("q", "b")
                raise RuntimeError
            assert stored(db) == (0, 1)
            assert client.url and client.user and client.database

    def test_threads_use_connections_of_their_own(self, database_url: str, db: Connection) -> None:
        with ConnectionPool(database_url, min_size=2, open=True) as pool:
            client = Client(pool)
            with client.transaction():
                client.send("q", "a")
                thread = threading.Thread(target=client.send, args=("q", "b"))
                thread.start()
                thread.join(60)
                assert stored(db) == (0, 1)
        assert stored(db) == (0, 2)

    def test_an_unreachable_server_is_a_failed_connection(self) -> None:
        with ConnectionPool(
            "host=/nonexistent", min_size=1, open=False, timeout=0.1, reconnect_timeout=0.1
        ) as pool:
            pool.open()
            with pytest.raises(ConnectionFailed):
                Client(pool).version()

    def test_an_asynchronous_pool_serves_tasks(self, database_url: str, db: Connection) -> None:
        async def main() -> None:
            async with AsyncConnectionPool(database_url, min_size=2, open=False) as pool:
                client = AsyncClient(pool)
                await asyncio.gather(*(client.send("q", "a") for _ in range(5)))
                tick(db)
                batch = await client.claim("q", "c", owner="me")
                assert batch is not None
                async with batch.keep_alive():
                    await batch.ack()

        asyncio.run(main())
        assert stored(db) == (0, 5)


def sqlalchemy_url(url: str) -> sa.URL:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return sa.URL.create(
        "postgresql+psycopg",
        query={str(key): str(value) for key, value in parts.items()},
    )


class TestSqlalchemy:
    def test_an_event_is_sent_by_the_sessions_commit(
        self, database_url: str, db: Connection
    ) -> None:
        engine = sa.create_engine(sqlalchemy_url(database_url))
        with Session(engine) as session:
            session.execute(sa.text("insert into shop values (1)"))
            client = Client(session.connection().connection.driver_connection)
            client.send("q", "a")
            assert stored(db) == (0, 0)
            session.rollback()
            assert stored(db) == (0, 0)
            session.execute(sa.text("insert into shop values (1)"))
            Client(session.connection().connection.driver_connection).send("q", "a")
            session.commit()
        engine.dispose()
        assert stored(db) == (1, 1)

    def test_an_event_is_sent_by_an_asynchronous_session(
        self, database_url: str, db: Connection
    ) -> None:
        async def main() -> None:
            engine = create_async_engine(sqlalchemy_url(database_url))
            async with AsyncSession(engine) as session:
                await session.execute(sa.text("insert into shop values (1)"))
                raw = await (await session.connection()).get_raw_connection()
                await AsyncClient(raw.driver_connection).send("q", "a")
                assert stored(db) == (0, 0)
                await session.commit()
            await engine.dispose()

        asyncio.run(main())
        assert stored(db) == (1, 1)


@pytest.fixture
def django_database(database_url: str) -> Iterator[None]:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(database_url)
    options = {key: parts.pop(key) for key in list(parts) if key not in ("dbname", "user", "host")}
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "HOST": parts.get("host", ""),
        "USER": parts.get("user", ""),
        "OPTIONS": options,
    }
    django.db.connections["default"] = ConnectionHandler({"default": database})["default"]
    yield
    django.db.connections["default"].close()


@pytest.mark.usefixtures("django_database")
class TestDjango:
    def test_an_event_is_sent_by_the_commit_of_an_atomic_block(self, db: Connection) -> None:
        with django.db.transaction.atomic():
            with django.db.connection.cursor() as cursor:
                cursor.execute("insert into shop values (1)")
            Client(django.db.connection.connection).send("q", {"id": 1})
            assert stored(db) == (0, 0)
        assert stored(db) == (1, 1)

    def test_an_event_is_not_sent_by_an_atomic_block_that_fails(self, db: Connection) -> None:
        with pytest.raises(RuntimeError), django.db.transaction.atomic():
            django.db.connection.ensure_connection()
            Client(django.db.connection.connection).send_batch("q", ["a", "b"])
            raise RuntimeError
        assert stored(db) == (0, 0)

    def test_an_event_is_sent_at_once_outside_of_a_block(self, db: Connection) -> None:
        django.db.connection.ensure_connection()
        assert Client(django.db.connection.connection).send("q", "a") == 1
        assert stored(db) == (0, 1)
