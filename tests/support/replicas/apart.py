"""Three tables, of which one is set apart."""

from tests.support.replicas.replication import PostgresReplication, Replication, execute

BAD, GOOD = "infinity", "2026-01-01"


def prepare(replication: Replication, tables: str = "abc") -> None:
    """Tables that are copied, and that a batch may add rows to."""
    for table in tables:
        replication.sql(
            f"create table {table} (id int primary key, d date);"
            f"insert into {table} values (1, '{GOOD}')"
        )
    replication.capture(*(f"public.{table}" for table in tables))
    replication.catch_up()
    if isinstance(replication, PostgresReplication):
        for table in tables:
            replication.there(f"alter table {table} add check (d < 'infinity')")


def insert(replication: Replication, number: int, tables: str = "abc") -> None:
    for table in tables:
        replication.sql(f"insert into {table} values ({number}, '{GOOD}')")


def spoil(replication: Replication, number: int, table: str = "b", value: str = BAD) -> None:
    replication.sql(f"insert into {table} values ({number}, '{value}')")


def mend(replication: Replication, table: str = "b") -> None:
    replication.sql(f"update {table} set d = '{GOOD}' where d = '{BAD}'")


def prepare_batch(replication: Replication, joins: bool) -> None:
    """A batch at which b is set apart, or joins the others again."""
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    if joins:
        replication.catch_up()
        insert(replication, 4)
        mend(replication)
        replication.end_pauses()
    replication.tick()


def join(replication: Replication) -> None:
    """Lets all tables that stand apart join the others, and compares."""
    replication.end_pauses()
    replication.follow_and_check()
    assert noted(replication) == []


def noted(replication: Replication) -> list[tuple[str, int, int]]:
    query = "select table_name, tick_id, attempts from pgque.replica_apart order by 1"
    return execute(replication.url, query).fetchall()


def needed(replication: Replication) -> int:
    """The first tick after which the queue's events are kept."""
    ((tick,),) = execute(replication.url, "select first_tick from pgque.needed_tick").fetchall()
    return int(tick)


def rotate(replication: Replication) -> None:
    """Rotates as often as it takes to empty each event table that nobody needs."""
    replication.sql("select pgque.set_queue_config('changes', 'rotation_period', '1 microsecond')")
    for _ in range(4):
        replication.sql("select pgque.maint_rotate_tables_step1('changes')")
        replication.sql("select pgque.maint_rotate_tables_step2()")
