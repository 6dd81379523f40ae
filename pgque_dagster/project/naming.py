"""Names of checks and steps, derived from the names of queues and consumers."""

import hashlib
import re


def identifier(name: str) -> str:
    """Returns a name that Dagster accepts. A changed name gets a hash, so that it stays unique."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return name
    return f"{plain[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
