"""Values of each type are the same on each way into a replica, and in the check of it."""

from psycopg.conninfo import conninfo_to_dict

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import copy_again
from tests.support.queues.type_values import ODD, OTHER, SETUP, VALUES, settings
from tests.support.replicas.replication import CONSUMER, QUEUE, Replication

# The lake has no NaN in a decimal, but in a text.
KINDS = {kind: values for kind, values in VALUES.items() if kind != "xml"}
COLUMNS = [(f"d{n}", n, kind) for n, kind in enumerate(KINDS)]


def values_of(replication: Replication, ids: range) -> list[str]:
    """The rows, as texts, because no NaN equals another."""
    rows = [row for row in replication.replica("public.t") if row["id"] in ids]
    return sorted(repr({**row, "id": row["id"] % 10}) for row in rows)


def test_a_value_is_the_same_by_copy_event_verify_and_repair(replication: Replication) -> None:
    domains = "".join(
        f"create domain d{n} as {kind}; create domain dd{n} as d{n} not null;"
        for n, kind in enumerate(KINDS)
    )
    columns = ", ".join(f"{name} dd{n}" for name, n, _ in COLUMNS)
    replication.sql(
        f"{SETUP}{domains} create table t (id int primary key, plain boolean, list d0[], {columns})"
    )
    for number in range(2):
        texts = (f"$q${values[min(number, len(values) - 1)]}$q$" for values in KINDS.values())
        replication.sql(f"insert into t values ({number}, true, '{{7,8}}', {', '.join(texts)})")
    database = conninfo_to_dict(replication.url)["dbname"]
    # ADBC recognizes no type in a session that quotes all names.
    for name, value in ODD.items() - {("quote_all_identifiers", "on")}:
        replication.sql(f"alter database {database} set {name} = {value}")
    replication.capture("public.t")
    replication.catch_up()
    copied = values_of(replication, range(10))
    assert len(copied) == 2
    again = (
        f"insert into public.t select id + {{}}, plain, list, {', '.join(x[0] for x in COLUMNS)}"
    )
    replication.sql(f"{settings(OTHER)}; {again.format(10)} from public.t where id < 10")
    assert replication.verify().is_equal
    replication.catch_up()
    assert values_of(replication, range(10, 20)) == copied
    replication.sql(
        f"set session_replication_role = replica; {again.format(30)} from public.t where id < 10;"
        "delete from public.t where id = 10; update public.t set d0 = 9 where id = 0"
    )
    assert replication.verify().differences == 4
    with Client(replication.url) as client:
        copy_again(client, QUEUE, CONSUMER, "public.t")
    replication.catch_up()
    assert values_of(replication, range(30, 40)) == copied
    assert replication.verify().is_equal
    assert len(replication.copied) == 2
