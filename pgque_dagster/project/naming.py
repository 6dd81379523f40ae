"""Names of checks and steps, derived from queues and consumers, and of the owners of leases."""

import hashlib
import re
from uuid import uuid4

_OWNER = re.compile(r"(?:step \w+ of )?dagster run (\S+)")


def owner_of_step(run_id: str) -> str:
    """Returns the name under which an execution of a step of a run claims batches.

    Each execution has its own: Dagster may start a step of a run again, by a RetryPolicy or because
    it lost sight of the step's pod, while the first process works on.
    """
    return f"step {uuid4().hex[:8]} of dagster run {run_id}"


def run_of_owner(owner: str | None) -> str | None:
    """Returns the id of the run that holds a lease; None if it is no run's."""
    found = _OWNER.fullmatch(owner or "")
    return found[1] if found else None


def identifier(name: str) -> str:
    """Returns a name that Dagster accepts. A changed name gets a hash, so that it stays unique."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return name
    return f"{plain[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
