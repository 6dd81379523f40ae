"""`MessageQueueComponent`: one queue of the add-on postgremq in the lineage, with its check."""

from typing import Annotated

import dagster as dg
from pydantic import Field

from ..checks import build_message_queue_defs
from .mirror import mirror
from .options import number, option
from .scaffolding import MessageQueueScaffolder


@dg.scaffold_with(MessageQueueScaffolder)
class MessageQueueComponent(
    mirror(
        build_message_queue_defs,
        leave_out=["queues"],
        max_dead_letters=lambda text: number(text, at_least=0),
        max_unfinished=lambda text: number(text, at_least=0, or_null=True),
    ),
    dg.Component,
):
    """A queue of messages, of the add-on postgremq: its asset in the lineage, and its check.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.MessageQueueComponent
            attributes:
              queue: emails
              max_unfinished: 1000
    """

    queue: Annotated[str, option("The queue's name.", "emails")]
    producers: Annotated[
        list[dg.ResolvedAssetKey], option("Assets that publish the messages.", ["orders"])
    ] = Field(default=[])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset and the check."""
        options = self.arguments()
        return build_message_queue_defs([options.pop("queue")], **options)
