"""Where replicas in Delta are. It loads neither Spark nor Delta's library."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeltaReplicas:
    """Where the replicas of tables are in Delta.

    Attributes:
        base_dir: a directory that driver and executors share, or a URL such as `s3://bucket/lake`.
            The replica of `public.orders` is in `public/orders`.
        storage_options: credentials and the like for a URL, as Delta's library names them.
    """

    base_dir: str
    storage_options: Mapping[str, str] | None = None
