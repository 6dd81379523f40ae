"""Where replicas in the lake are. It loads neither Spark nor the libraries of the formats."""

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


@dataclass(frozen=True)
class IcebergReplicas:
    """Where the replicas of tables are in Iceberg.

    Attributes:
        warehouse: where their files are: a directory that driver and executors share, or a URL such
            as `s3://bucket/warehouse`. The replica of `public.orders` is the table `public.orders`.
        catalog: properties of a catalog, as pyiceberg takes them, such as
            `{"type": "rest", "uri": "https://…"}`; None for one in the tables' own database.
        catalog_schema: the schema of the catalog in that database.
        storage_options: credentials and the like for a URL, such as `aws_access_key_id`.
    """

    warehouse: str
    catalog: Mapping[str, str] | None = None
    catalog_schema: str = "iceberg_catalog"
    storage_options: Mapping[str, str] | None = None


LakeReplicas = DeltaReplicas | IcebergReplicas
