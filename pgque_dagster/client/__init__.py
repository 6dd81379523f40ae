"""The plain client: psycopg 3 and nothing else, for those who need no Dagster and no Spark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .batch import AckResult, AsyncBatch, Batch
from .client import AsyncClient, Client
from .errors import (
    AddonMissing,
    BatchLeased,
    BatchNotOpen,
    ChangeRefused,
    ConnectionFailed,
    ConsumerInUse,
    ConsumerNotFound,
    DatabaseError,
    DeadLetterNotFound,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    MalformedPayload,
    NewerInstalled,
    NotAdopted,
    OlderInstalled,
    PermissionDenied,
    PgqueError,
    QueueClosed,
    QueueInUse,
    QueueNotFound,
    SchedulerMissing,
    SchemaMissing,
    SkipsEvents,
    StagingLost,
    StaleReadPlan,
    TickRefused,
    TicksUnavailable,
    TransactionOutdated,
    UnreadEvents,
    UnsupportedServer,
    WrongConsumerRole,
    WrongDeployment,
    WrongIsolation,
)
from .lease import LeaseKeeper
from .messages import AsyncMessages, Messages
from .models import (
    BatchInfo,
    ClaimedMessage,
    ConsumerInfo,
    DeadLetter,
    DeadLetterCount,
    Event,
    HealthCheck,
    Lease,
    LeaseInfo,
    Limits,
    Message,
    MessageQueue,
    Metric,
    QueueInfo,
    QueueStats,
    Received,
    ScheduledEvent,
    Sent,
    SetAside,
    Sought,
    Status,
)
from .partitions import PartitionedConsumer, Slot
from .positions import Position
from .serial import Entry, NumberedEntry, SerialQueue
from .ticker import Ticker

if TYPE_CHECKING:
    from .consumer import (
        Consumer,
        ConsumerHealth,
        Delivery,
        HandlerMissing,
        TransactionEnded,
    )
    from .remote import (
        Change,
        QueueMover,
        RemoteConsumer,
        TableLoader,
        TargetOutOfStep,
        TargetRefused,
    )

__all__ = [
    "AckResult",
    "AddonMissing",
    "AsyncBatch",
    "AsyncClient",
    "AsyncMessages",
    "Batch",
    "BatchInfo",
    "BatchLeased",
    "BatchNotOpen",
    "Change",
    "ChangeRefused",
    "ClaimedMessage",
    "Client",
    "ConnectionFailed",
    "Consumer",
    "ConsumerHealth",
    "ConsumerInUse",
    "ConsumerInfo",
    "ConsumerNotFound",
    "DatabaseError",
    "DeadLetter",
    "DeadLetterCount",
    "DeadLetterNotFound",
    "Delivery",
    "Entry",
    "Event",
    "EventNotInBatch",
    "HandlerMissing",
    "HealthCheck",
    "InvalidArgument",
    "Lease",
    "LeaseInfo",
    "LeaseKeeper",
    "LeaseLost",
    "Limits",
    "MalformedPayload",
    "Message",
    "MessageQueue",
    "Messages",
    "Metric",
    "NewerInstalled",
    "NotAdopted",
    "NumberedEntry",
    "OlderInstalled",
    "PartitionedConsumer",
    "PermissionDenied",
    "PgqueError",
    "Position",
    "QueueClosed",
    "QueueInUse",
    "QueueInfo",
    "QueueMover",
    "QueueNotFound",
    "QueueStats",
    "Received",
    "RemoteConsumer",
    "ScheduledEvent",
    "SchedulerMissing",
    "SchemaMissing",
    "Sent",
    "SerialQueue",
    "SetAside",
    "SkipsEvents",
    "Slot",
    "Sought",
    "StagingLost",
    "StaleReadPlan",
    "Status",
    "TableLoader",
    "TargetOutOfStep",
    "TargetRefused",
    "TickRefused",
    "Ticker",
    "TicksUnavailable",
    "TransactionEnded",
    "TransactionOutdated",
    "UnreadEvents",
    "UnsupportedServer",
    "WrongConsumerRole",
    "WrongDeployment",
    "WrongIsolation",
]

# Loaded on first use, since most programs run no handlers.
_MODULES = {
    "consumer": (
        "Consumer",
        "ConsumerHealth",
        "Delivery",
        "HandlerMissing",
        "TransactionEnded",
    ),
    "remote": (
        "Change",
        "QueueMover",
        "RemoteConsumer",
        "TableLoader",
        "TargetOutOfStep",
        "TargetRefused",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
