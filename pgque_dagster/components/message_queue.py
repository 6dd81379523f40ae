"""`MessageQueueComponent`: one queue of the add-on postgremq in the lineage, with its check."""

from typing import Annotated

import dagster as dg
from pydantic import Field

from ..checks import build_message_queue_defs
from .options import Options, condition, number, option
from .scaffolding import MessageQueueScaffolder


@dg.scaffold_with(MessageQueueScaffolder)
class MessageQueueComponent(Options, dg.Component):
    """A queue of messages, of the add-on postgremq: its asset in the lineage, and its check.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.MessageQueueComponent
            attributes:
              queue: emails
              max_unfinished: 1000
    """

    queue: Annotated[str, option("The queue's name.", "emails")]
    group_name: Annotated[str, option("The group of its asset.")] = "pgque"
    producers: Annotated[
        list[dg.ResolvedAssetKey], option("Assets that publish the messages.", ["orders"])
    ] = Field(default=[])
    max_dead_letters: Annotated[
        int, number("How many messages may be in the dead-letter queue.", at_least=0)
    ] = 0
    max_unfinished: Annotated[
        int | None,
        number("How many messages may wait or be claimed; null for any.", at_least=0, or_null=True),
    ] = None
    severity: Annotated[
        dg.AssetCheckSeverity, option("The severity of a failure: ERROR or WARN.")
    ] = dg.AssetCheckSeverity.ERROR
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetCheckKey] | None,
        condition("When Dagster evaluates the check by itself."),
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset and the check."""
        return build_message_queue_defs(
            [self.queue],
            group_name=self.group_name,
            producers=self.producers,
            max_dead_letters=self.max_dead_letters,
            max_unfinished=self.max_unfinished,
            severity=self.severity,
            automation_condition=self.automation_condition,
        )
