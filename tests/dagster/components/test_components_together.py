"""Components of all kinds, in one project, each alone and all together."""

import dagster as dg
import pytest

from pgque_dagster import queue_key
from tests.support.dagster.dg_project import DgProject

REPLICA = """\
type: pgque_dagster.TableReplicaComponent
attributes:
  name: {name}
  tables: [public.orders, public.items]
  target: {{type: delta, base_dir: {name}}}
"""
# All on the queue of the replicas `shop`.
COMPONENTS = {
    "queue": "type: pgque_dagster.QueueComponent\nattributes:\n  queue: shop\n",
    "revenue": "type: pgque_dagster.BatchConsumerComponent\nattributes:\n"
    "  queue: shop\n  name: revenue\n  transform: math.sqrt\n"
    "  sink: {base_dir: output}\n  consumer_lag_checks: {max_lag: 5m}\n",
    "days": "type: pgque_dagster.WindowComponent\nattributes:\n"
    "  queue: shop\n  name: days\n  transform: math.sqrt\n  sink: {base_dir: windows}\n"
    "  partitions_def: \"{{ dg.DailyPartitionsDefinition(start_date='2026-01-01') }}\"\n",
    "shop": REPLICA.format(name="shop"),
    "bank": REPLICA.format(name="bank"),
    "warehouse": REPLICA.format(name="warehouse") + "  queue: shop\n",
}
PGQUE = """\
type: pgque_dagster.PgqueComponent
attributes:
  url: postgresql://localhost/none
  queues: [shop]
  alerts: {notify: builtins.print}
"""


def load(project: DgProject, *names: str, pgque: str = PGQUE) -> dg.Definitions:
    """Loads a project with these components, as a code location does."""
    project.write("pgque", pgque)
    for name in names:
        project.write(name, COMPONENTS[name])
    definitions = project.load()
    dg.Definitions.validate_loadable(definitions)
    return definitions


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_component_loads_alone(project: DgProject, name: str) -> None:
    load(project, name)


def test_all_components_load_together(project: DgProject) -> None:
    definitions = load(project, *COMPONENTS)

    graph = definitions.resolve_asset_graph()
    source = dg.AssetKey(["shop", "source", "public", "orders_source"])
    assert source in graph.get(queue_key("shop")).parent_keys
    described = str(graph.get(queue_key("shop")).description)
    assert "`shop`" in described and "`revenue`" in described
    groups = {
        graph.get(dg.AssetKey([name, "public", "orders"])).group_name for name in ("shop", "bank")
    }
    assert groups == {"shop", "bank"}


def test_alerts_watch_the_queues_of_replicas_each_those_of_its_database(
    project: DgProject,
) -> None:
    project.write("loans", REPLICA.format(name="loans") + "  database: billing\n")
    project.write(
        "billing",
        PGQUE.replace("queues: [shop]", "database: billing\n  spark_config: null"),
    )

    definitions = load(project, "bank", pgque=PGQUE.replace("  queues: [shop]\n", ""))

    watched = {
        name: str(definitions.get_sensor_def(name).description)
        .partition(" with ")[2]
        .partition(" begins")[0]
        for name in ("pgque_alerts", "billing__pgque_alerts")
    }
    assert watched == {"pgque_alerts": "bank", "billing__pgque_alerts": "loans"}


def test_a_consumer_may_read_the_changes_of_replicas(project: DgProject) -> None:
    load(project, "shop", "revenue", pgque=PGQUE.replace("  queues: [shop]\n", ""))


def test_a_consumer_that_replicas_have_is_refused(project: DgProject) -> None:
    project.write(
        "other", COMPONENTS["revenue"].replace("name: revenue", "name: other\n  consumer: shop")
    )

    with pytest.raises(Exception, match="defs") as raised:
        load(project, "shop")

    assert "share the consumer shop/shop" in str(raised.value.__cause__)


LAKE = "target: {type: delta, base_dir: shop}"
COPIES = "target: {type: postgres, schema: copies}"
ICEBERG = "target: {type: iceberg, warehouse: %s}"


@pytest.mark.parametrize(
    ("targets", "tables", "is_refused"),
    [
        ((LAKE, "target: {type: delta, base_dir: ./shop/}"), "[public.items]", True),
        ((LAKE, LAKE), "[public.more]", False),
        ((LAKE, LAKE), "['public.ite*']", True),
        ((LAKE, LAKE), "[other.items]", False),
        ((COPIES, COPIES), "[other.items]", True),
        ((COPIES, "target: {type: postgres, schema: others}"), "[public.items]", False),
        ((ICEBERG % "a", ICEBERG % "b"), "[public.items]", True),
        ((ICEBERG % "a", LAKE), "[public.items]", False),
    ],
)
def test_two_replicas_that_would_be_one_table_are_refused(
    project: DgProject, targets: tuple[str, str], tables: str, is_refused: bool
) -> None:
    for name, target in zip(("shop", "bank"), targets, strict=True):
        written = COMPONENTS[name].replace(f"target: {{type: delta, base_dir: {name}}}", target)
        if name == "bank":
            written = written.replace("[public.orders, public.items]", tables)
            written += "  url: postgresql://localhost/none\n"
        project.write(name, written)
    project.write("pgque", PGQUE)
    if not is_refused:
        project.load()
        return
    with pytest.raises(Exception, match="defs") as raised:
        project.load()
    assert "would write the same table of one target, of" in str(raised.value.__cause__)
