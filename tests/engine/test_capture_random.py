"""Whatever statements come, also at the same time, a replica is equal to its table."""

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.captured import check, run
from tests.support.queues import Connection


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_statements_makes_a_replica_equal_to_the_table(
    db: Connection, seed: int
) -> None:
    chance = random.Random(seed)
    run(db, "create table t (id int primary key deferrable, a int)")
    run(
        db,
        "create function meddle() returns trigger language plpgsql as $$ begin"
        " if pg_trigger_depth() < 3 and new.a % 3 = 0 then"
        "  update t set a = a + 1 where id = new.id + 1; delete from t where id = new.id - 2;"
        " elsif pg_trigger_depth() < 2 and new.a % 3 = 1 then"
        "  update t set a = a + 2 where id = new.id; end if;"
        " return null; end $$;"
        "create trigger meddle after insert or update on t for each row execute function meddle()",
    )
    run(db, "select pgque.capture('t', 'q')")
    for _ in range(40):
        id, a, other = (chance.randrange(1, 15) for _ in range(3))
        statement = chance.choice(
            [
                f"insert into t select n, {a} from generate_series({id}, {id + 3}) n"
                f" where not exists (select from t where t.id = n)",
                f"update t set a = a + {a} where id between {id} and {id + 4}",
                f"update t set id = {id + other} - id where id between {id} and {other}",
                f"delete from t where id = {id}",
                "begin",
                "commit",
                "savepoint s",
                "rollback to s",
                "truncate t" if a == 1 else f"update t set id = id + 100 where id = {id}",
            ]
        )
        try:
            run(db, statement)
        except Exception:
            run(db, "rollback")
    run(db, "rollback")

    check(db)


def test_writers_at_the_same_time_are_in_the_order_in_which_their_changes_took_effect(
    db: Connection,
) -> None:
    run(db, "create table t (id int primary key, a int, b text)")
    run(db, "select pgque.capture('t', 'q')")
    run(db, "insert into t select n, 0 from generate_series(1, 12) n")

    def write(seed: int) -> None:
        chance, session = random.Random(seed), db.another()
        for n in range(150):
            one, two = chance.sample(range(1, 13), 2)
            statement = chance.choice(
                [
                    f"update t set a = {n}, b = '{seed}' where id in ({one}, {two})",
                    f"delete from t where id = {one}",
                    f"insert into t values ({one}, {n}, '{seed}')"
                    f" on conflict (id) do update set a = excluded.a, b = 'again by {seed}'",
                    f"update t set id = {two} where id = {one}",
                    f"begin; update t set a = -1 where id = {one}; select pg_sleep(0.002);"
                    f" update t set a = {n} where id = {two}; "
                    + chance.choice(["commit", "rollback"]),
                ]
            )
            try:
                run(session, statement)
            except psycopg.Error:  # A deadlock, or a key that another session has taken.
                run(session, "rollback")

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(6)))

    check(db)
