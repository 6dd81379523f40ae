"""`QueueComponent`: one queue in the lineage, with its observation and checks."""

import re
from typing import Annotated

import dagster as dg
from pydantic import Field

from ..checks.dead_letters import build_dead_letter_checks
from ..checks.health import build_queue_health_checks
from ..project.database import Database
from ..project.lineage import build_queue_assets
from ..sensors.observation import build_pgque_observation_sensor
from .consuming import Consuming, all_components
from .options import Options, built, mirror, option
from .scaffolding import QueueScaffolder

# Arguments of the checks and the observation that the component sets.
_OF_QUEUE = ["queues", "database"]


class DeadLetterChecks(mirror(build_dead_letter_checks, leave_out=_OF_QUEUE)):
    """Options of `build_dead_letter_checks`."""


class QueueHealthChecks(mirror(build_queue_health_checks, leave_out=_OF_QUEUE)):
    """Options of `build_queue_health_checks`."""


class ObservationOptions(
    mirror(
        build_pgque_observation_sensor,
        leave_out=_OF_QUEUE,
        named="<queue>_observation",
    )
):
    """Options of `build_pgque_observation_sensor`."""


class CheckScheduleOptions(Options):
    """When the checks of a queue run."""

    cron_schedule: Annotated[str, option("When to run the checks.", "* * * * *")] = "*/5 * * * *"
    default_status: Annotated[
        dg.DefaultScheduleStatus, option("RUNNING, or STOPPED until it is switched on in the UI.")
    ] = dg.DefaultScheduleStatus.STOPPED


@dg.scaffold_with(QueueScaffolder)
class QueueComponent(mirror(build_queue_assets, leave_out=["consumers"]), dg.Component):
    """A queue: its assets in the lineage, its observation, its checks and the job that runs them.

    The PgqueComponent of its database creates the queue if it does not exist. The job is named
    after the queue, such as `orders_checks`. It runs all checks on the queue and its dead letters,
    including those of its consumers, every 5 minutes once its schedule is switched on.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.QueueComponent
            attributes:
              queue: orders
              dead_letter_checks:
                max_dead_letters: 10
              check_schedule:
                cron_schedule: "* * * * *"
                default_status: RUNNING

        A subclass may change the assets:

        .. code-block:: python

            class OwnedQueue(QueueComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.replace_attributes(owners=["team:orders"])
    """

    producers: Annotated[
        list[dg.ResolvedAssetKey],
        option("Assets that send the events, such as a table with a trigger.", ["orders"]),
    ] = Field(default=[])
    observation: Annotated[
        ObservationOptions | None,
        option("How often depth, rate and lag are recorded; null for never."),
    ] = ObservationOptions()
    dead_letter_checks: Annotated[
        DeadLetterChecks | None, option("The checks on dead letters; null for none.")
    ] = DeadLetterChecks()
    queue_health_checks: Annotated[
        QueueHealthChecks | None,
        option("A check for each check of pgque.queue_health(); null for none."),
    ] = QueueHealthChecks()
    check_schedule: Annotated[
        CheckScheduleOptions | None, option("When to run the checks; null for no schedule.")
    ] = CheckScheduleOptions()

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of the queue's asset or of its dead letters. Override this to change it.

        Args:
            spec: the spec that `build_queue_assets` makes. Keep its key.
        """
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the assets, their observation and checks, and the job and schedule for these."""
        database, queues = Database(self.database), [self.queue]
        found = [
            (each, consumer)
            for each in all_components(context, Consuming)
            for consumer in each.asset_consumers
            if (consumer.database, consumer.queue) == (database, self.queue)
        ]
        sending = [key for each, _ in found for key in each.sources]
        producers = list(dict.fromkeys([*self.producers, *sending]))
        options = {**self.arguments(), "producers": producers}
        assets = build_queue_assets(**options, consumers=[consumer for _, consumer in found])
        checks = built(self.dead_letter_checks, queues, database=self.database)
        checks += built(self.queue_health_checks, queues, database=self.database)
        name = database.named(re.sub(r"\W", "_", self.queue))
        job = dg.define_asset_job(
            f"{name}_checks",
            # Includes the checks that consumers define on the queue.
            dg.AssetSelection.checks_for_assets(
                database.queue_key(self.queue), database.dead_letters_key(self.queue)
            ),
            description=f"Runs the checks of queue {self.queue}.",
        )
        when = self.check_schedule if checks else None
        return dg.Definitions(
            assets=[each.map_asset_specs(self.get_asset_spec) for each in assets],
            asset_checks=checks,
            sensors=built(
                self.observation, queues, name=f"{name}_observation", database=self.database
            ),
            jobs=[job] if checks else [],
            schedules=[dg.ScheduleDefinition(job=job, **when.arguments())] if when else [],
        )
