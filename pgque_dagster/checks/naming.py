"""Names of checks and their steps, made of names of queues and consumers."""

import hashlib
import re


def identifier(name: str) -> str:
    """Returns the name as Dagster accepts it; names that become equal by that are told apart."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return name
    return f"{plain[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
