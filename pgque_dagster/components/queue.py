"""`QueueComponent`: one queue in the lineage, with the checks on what its consumers gave up."""

import re
from datetime import timedelta
from typing import Annotated

import dagster as dg
from pydantic import Field

from ..checks import build_dead_letter_checks, build_queue_health_checks
from ..checks.dead_letters import ShowPayloads
from ..keys import dead_letters_key, queue_key
from ..lineage import build_queue_assets
from ..sensors.observation import build_pgque_observation_sensor
from .batch_consumer import BatchConsumerComponent
from .options import Options, condition, duration, option
from .scaffolding import QueueScaffolder
from .transforms import load_function
from .tree import all_components


class DeadLetterChecks(Options):
    """Options of `build_dead_letter_checks`."""

    max_dead_letters: Annotated[int, option("How many the queue may have.")] = 0
    max_by_reason: Annotated[
        dict[str, int] | None,
        option("Limits of their own for some reasons, as patterns of LIKE.", {"not JSON%": 10}),
    ] = None
    max_growth: Annotated[
        int | None, option("How many events may be given up between two evaluations.")
    ] = None
    severity: Annotated[dg.AssetCheckSeverity, option("Of a failure: ERROR or WARN.")] = (
        dg.AssetCheckSeverity.ERROR
    )
    sample_rows: Annotated[int, option("How many of the newest to show.")] = 5
    show_payloads: Annotated[
        ShowPayloads,
        dg.Resolver(
            lambda context, value: (
                load_function(context, value) if isinstance(value, str) else value
            ),
            model_field_type=bool | Annotated[str, Field(pattern=r"\.")],
            description="Whether payloads are shown there; or the import path of a function that "
            "returns what to show of a dead letter.",
            examples=[False, ".redaction.without_names"],
        ),
    ] = True
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetCheckKey] | None,
        condition("When Dagster evaluates the checks by itself."),
    ] = None


class QueueHealthChecks(Options):
    """Options of `build_queue_health_checks`."""

    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetCheckKey] | None,
        condition("When Dagster evaluates the checks by itself."),
    ] = None


class ObservationOptions(Options):
    """Options of `build_pgque_observation_sensor`."""

    name: Annotated[str | None, option("The sensor's; `<queue>_observation`, if left out.")] = None
    interval: Annotated[timedelta, duration("Between two observations.")] = timedelta(minutes=5)
    default_status: Annotated[
        dg.DefaultSensorStatus, option("RUNNING, or STOPPED until it is switched on.")
    ] = dg.DefaultSensorStatus.RUNNING


@dg.scaffold_with(QueueScaffolder)
class QueueComponent(Options, dg.Component):
    """A queue: its assets in the lineage, its observation, its checks and the job that runs them.

    The queue is created by the project's PgqueComponent where it is missing. The job is named
    after the queue, `orders_checks`, and runs every 5 minutes all checks on the queue and its dead
    letters, those of its consumers among them.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.QueueComponent
            attributes:
              queue: orders
              dead_letter_checks:
                max_dead_letters: 10
              check_schedule: "* * * * *"

        A subclass may change the assets:

        .. code-block:: python

            class OwnedQueue(QueueComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.replace_attributes(owners=["team:orders"])
    """

    queue: Annotated[str, option("The queue's name.", "orders")]
    group_name: Annotated[str, option("The group to show its assets in.")] = "pgque"
    producers: Annotated[
        list[dg.ResolvedAssetKey],
        option("Assets whose events these are, such as the table whose trigger sends.", ["orders"]),
    ] = Field(default=[])
    observation: Annotated[
        ObservationOptions | None,
        option("How often its depth, rate and lag are recorded; null for never."),
    ] = ObservationOptions()
    dead_letter_checks: Annotated[
        DeadLetterChecks | None, option("How many dead letters are too many; null for no check.")
    ] = DeadLetterChecks()
    queue_health_checks: Annotated[
        QueueHealthChecks | None,
        option("The health checks of the SQL side, one by one; null for none of them."),
    ] = QueueHealthChecks()
    check_schedule: Annotated[
        str | None,
        option("A cron expression: when to run the checks; null for never.", "* * * * *"),
    ] = "*/5 * * * *"

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the asset to show for the queue, or for its dead letters; made to be overridden.

        Args:
            spec: the asset as `build_queue_assets` makes it. Its key has to stay.
        """
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Makes the assets, their observation, the checks, and what runs them."""
        assets = build_queue_assets(
            self.queue,
            group_name=self.group_name,
            producers=self.producers,
            consumers=[
                each.consumer_name
                for each in all_components(context, BatchConsumerComponent)
                if each.queue == self.queue
            ],
        )
        checks = self._checks()
        name = re.sub(r"\W", "_", self.queue)
        jobs = [
            dg.define_asset_job(
                f"{name}_checks",
                # Those that consumers have on the queue are among them.
                dg.AssetSelection.checks_for_assets(
                    queue_key(self.queue), dead_letters_key(self.queue)
                ),
                description=f"Runs the checks of queue {self.queue}.",
            )
        ]
        schedules = [
            dg.ScheduleDefinition(
                job=job,
                cron_schedule=self.check_schedule,
                default_status=dg.DefaultScheduleStatus.RUNNING,
            )
            for job in jobs
            if self.check_schedule
        ]
        return dg.Definitions(
            assets=[self.get_asset_spec(spec) for spec in assets],
            asset_checks=checks,
            sensors=self._sensors(name),
            jobs=jobs if checks else [],
            schedules=schedules if checks else [],
        )

    def _checks(self) -> list[dg.AssetChecksDefinition]:
        checks: list[dg.AssetChecksDefinition] = []
        if self.dead_letter_checks is not None:
            options = self.dead_letter_checks.arguments()
            checks += build_dead_letter_checks([self.queue], **options)
        if self.queue_health_checks is not None:
            options = self.queue_health_checks.arguments()
            checks += build_queue_health_checks([self.queue], **options)
        return checks

    def _sensors(self, name: str) -> list[dg.SensorDefinition]:
        if self.observation is None:
            return []
        options = self.observation.arguments()
        options["name"] = self.observation.name or f"{name}_observation"
        return [build_pgque_observation_sensor([self.queue], **options)]
