"""`build_pgque_observation_sensor` and the pages of queues that its observations make."""

import re
from datetime import timedelta

import dagster as dg
import pytest

from pgque_dagster import (
    PgqueResource,
    build_pgque_observation_sensor,
    build_queue_assets,
    dead_letters_key,
    queue_key,
)
from pgque_dagster.client import Client, QueueNotFound
from pgque_dagster.client.batch import hold
from pgque_dagster.project.consumers import AssetConsumer
from pgque_dagster.project.queue_report import assets_of, report_queues, short
from tests.support.queues.events import claim, make_queue, publish, tick

HOUR = timedelta(hours=1)


def evaluate(sensor: dg.SensorDefinition, url: str) -> dg.SensorResult | str:
    """Returns what the sensor observed, or its skip reason."""
    result = sensor(dg.build_sensor_context(), pgque=PgqueResource(url=url))
    return str(result.skip_message) if isinstance(result, dg.SkipReason) else result


def numbers(result: dg.SensorResult | str) -> dict[dg.AssetKey, dict[str, object]]:
    """The metadata of the observations, by asset."""
    assert isinstance(result, dg.SensorResult)
    return {
        event.asset_key: {name: each.value for name, each in event.metadata.items()}
        for event in result.asset_events
    }


def plotted(metadata: dict[str, object]) -> set[str]:
    """What the UI plots: each number."""
    return {name for name, value in metadata.items() if isinstance(value, int | float)}


def page(client: Client, key: dg.AssetKey | None = None) -> dict[str, str]:
    """What the page of the queue or of its dead letters shows as text."""
    report = report_queues(client, ["orders"])[key or queue_key("orders")]
    return {name: text(value) for name, value in report.items()}


def text(value: object) -> str:
    return str(value.value if isinstance(value, dg.MetadataValue) else value)


def give_up_one_of(client: Client, *payloads: str, reason: str = "no good") -> None:
    publish(client, payloads)
    batch = claim(client)
    batch.dead_letter([batch.events()[0].msg_id], reason=reason)
    batch.ack()


def observe(
    asset: dg.AssetsDefinition, url: str, instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    """Does what the button Observe on the asset's page does."""
    definitions = dg.Definitions(assets=[asset], resources={"pgque": PgqueResource(url=url)})
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, asset_selection=[asset.key])


def test_each_queue_and_its_dead_letters_are_observed_with_their_numbers(client: Client) -> None:
    """There are four plots of a queue and one of its dead letters, without gaps.

    The lag is that of events that wait; a tick behind which none waits is no lag.
    """
    make_queue(client, "returns", "stock")
    make_queue(client, "unobserved", "nobody")
    sensor = build_pgque_observation_sensor(["orders", "nosuch", "returns"])
    tick(client)
    idle = numbers(evaluate(sensor, client.url))
    claim(client).ack()
    give_up_one_of(client, "a", "b", "c")
    publish(client, ["d", "e"])
    busy = numbers(evaluate(sensor, client.url))

    assert list(busy) == [
        queue_key("orders"),
        dead_letters_key("orders"),
        queue_key("returns"),
        dead_letters_key("returns"),
    ]
    for found in (idle, busy):
        assert plotted(found[queue_key("orders")]) == {
            "pgque/depth",
            "pgque/events_per_second",
            "pgque/slowest_consumer_lag_seconds",
            "pgque/dead_letters",
        }
        assert plotted(found[dead_letters_key("orders")]) == {"pgque/dead_letters"}
    quiet, orders = idle[queue_key("orders")], busy[queue_key("orders")]
    assert (quiet["pgque/depth"], orders["pgque/depth"]) == (0, 2)
    assert (quiet["pgque/dead_letters"], orders["pgque/dead_letters"]) == (0, 1)
    assert busy[dead_letters_key("orders")]["pgque/dead_letters"] == 1
    assert busy[queue_key("returns")]["pgque/depth"] == 0
    assert busy[dead_letters_key("returns")]["pgque/dead_letters"] == 0
    assert quiet["pgque/slowest_consumer_lag_seconds"] == 0.0
    assert float(str(orders["pgque/slowest_consumer_lag_seconds"])) > 0
    assert float(str(orders["pgque/events_per_second"])) > 0


def test_the_consumers_are_named_with_what_each_is_doing_the_slowest_first(
    client: Client,
) -> None:
    client.register_consumer("orders", "billing")
    publish(client, ["a", "b"])
    batch = claim(client)
    ahead = claim(client, consumer="billing")
    ahead.ack()

    table = page(client)["pgque/consumers"]

    header, _, first, second = table.splitlines()
    assert header == "| consumer | behind | events | batch | active | asset |"
    running = rf"\| revenue \| \d+ s \| 2 \| {batch.batch_id}, in a run \| \d+ s ago \|  \|"
    assert re.fullmatch(running, first)
    assert re.fullmatch(r"\| billing \| 0 s \| 0 \| none \| \d+ s ago \|  \|", second)


def test_the_page_names_the_assets_of_the_code_location_and_links_to_what_mends(
    client: Client,
) -> None:
    give_up_one_of(client, "a")
    publish(client, ["b"])
    held = claim(client)
    held.release()
    client.run(hold(held.batch_id, held.lease.epoch, "after 3 attempts; correct the cause"))
    consumers = [AssetConsumer("orders", "revenue", (dg.AssetKey(["shop", "sales"]),))]

    reports = report_queues(client, ["orders"], consumers)

    queue, letters = reports[queue_key("orders")], reports[dead_letters_key("orders")]
    table = text(queue["pgque/consumers"])
    assert table.startswith("| consumer | behind | events | batch | active | asset |")
    assert re.search(rf"\| {held.batch_id}, HELD \| \d+ s ago \| shop/sales \|", table)
    wrong = text(queue["pgque/what_is_wrong"])
    assert f"batch {held.batch_id} of " in wrong
    assert "is held since " in wrong
    assert "after 3 attempts; correct the cause" in wrong
    assert queue["pgque/materialize/shop/sales"] == dg.MetadataValue.asset(
        dg.AssetKey(["shop", "sales"])
    )
    assert "| revenue | no good | 1 |" in text(letters["pgque/by_consumer_and_reason"])


def test_a_subconsumer_is_named_with_the_asset_of_its_consumer() -> None:
    sales, dotted = (dg.AssetKey(each) for each in ("sales", "dotted"))
    consumers = [
        AssetConsumer("orders", "revenue", (sales,)),
        AssetConsumer("orders", "revenue.eu", (dotted,)),
    ]

    assert assets_of(consumers, "orders", "revenue.2") == (sales,)
    assert assets_of(consumers, "orders", "revenue.eu") == (dotted,)
    assert assets_of(consumers, "returns", "revenue") == ()


def test_a_paused_queue_says_how_to_resume_it(client: Client) -> None:
    assert page(client)["pgque/what_is_wrong"] == "nothing"
    client.pause_queue("orders")

    assert "resume the queue: pgque resume orders" in page(client)["pgque/what_is_wrong"]


def test_what_a_reason_contains_stays_within_its_cell(client: Client) -> None:
    give_up_one_of(client, "a", reason="x | y\n<img src=z>")

    table = page(client, dead_letters_key("orders"))["pgque/by_consumer_and_reason"]

    assert "| revenue | x \\| y \\<img src=z> | 1 |" in table


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=119), "119 s"),
        (timedelta(minutes=2), "2 min"),
        (timedelta(hours=2), "2 h"),
        (timedelta(days=2, hours=3), "2 days"),
    ],
)
def test_a_duration_is_shown_in_the_unit_that_a_person_would_choose(
    time: timedelta, shown: str
) -> None:
    assert short(time) == shown


def test_the_button_observe_records_the_same_or_names_the_queue_that_is_missing(
    client: Client, instance: dg.DagsterInstance
) -> None:
    give_up_one_of(client, "a")

    for asset in build_queue_assets("orders"):
        assert observe(asset, client.url, instance).success
        (record,) = instance.fetch_observations(asset.key, 1).records
        assert record.asset_observation is not None
        assert record.asset_observation.metadata["pgque/dead_letters"].value == 1
    with pytest.raises(QueueNotFound, match="pgque create-queue nosuch"):
        observe(build_queue_assets("nosuch")[0], client.url, instance)


def test_a_database_that_is_down_is_a_reason_and_no_error() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/none"

    reason = evaluate(build_pgque_observation_sensor(["orders"]), url)

    assert isinstance(reason, str)
    assert "127.0.0.1" in reason
    assert "secret" not in reason


@pytest.mark.parametrize(
    ("queues", "interval", "words"),
    [([], HOUR, "no queue to observe"), (["orders"], timedelta(0), "must be more than 0")],
)
def test_a_sensor_that_makes_no_sense_is_refused(
    queues: list[str], interval: timedelta, words: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        build_pgque_observation_sensor(queues, interval=interval)
