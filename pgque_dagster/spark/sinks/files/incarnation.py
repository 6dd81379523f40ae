"""Whose batches a location holds: what one incarnation stored, another may deliver again.

Its batches have other ids there, and an equal id may mean other events.

The names in `<location>/_pgque/lineages/` are the incarnations; readers of the table pass over it.
What stands in the files there is for people.
"""

import json
from datetime import UTC, datetime

from ....client import InvalidArgument, installation
from ....client.session import Session
from .folders import MARKER, Folders


def check_incarnation(location: str, store: Folders, session: Session) -> None:
    """Marks a new location with the database's incarnation.

    Raises:
        InvalidArgument: if it holds batches that are not of this incarnation.
    """
    own = str(session.run(installation.incarnation()))
    found = store.incarnations()
    if not found:
        # Looked for first: who is at the same location now marks it before it stores a batch.
        has_batches = store.has_batches()
        found = store.incarnations()
        if has_batches and not found:
            raise InvalidArgument(
                f"{location} holds batches (batch_id=…) of an unknown database",
                "Write to another directory. If they are all of database "
                f"{session.database}, which has them no more in its queue, mark them as its own: "
                f"create {location}/{MARKER}/{own}/ with a file in it that is not empty.",
            )
        if not found:
            store.mark(own, _note(own, session))
            found = store.incarnations()
    if found != {own}:
        others = ", ".join(sorted(found - {own}))
        raise InvalidArgument(
            f"{location} holds batches of incarnation {others}, and database {session.database} is "
            f"of incarnation {own}: batches of one id would replace each other",
            "Write to another directory; or remove this one, if its rows are not wanted any more. "
            "After a failover or a restore, to go on here: remove the batches in it that end after "
            "the consumer's position, since the database delivers them again (docs/restore.md says "
            "how to find them; after a switchover that lost nothing there are none), then rename "
            f"{MARKER}/{others} in it to {MARKER}/{own}.",
        )


def _note(incarnation: str, session: Session) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps(
        {"lineage": incarnation, "database": session.database, "first_written_at": now}
    )
