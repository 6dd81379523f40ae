"""Asset checks and alerts on queues: dead letters, consumer lag and health."""

from .alerts import Alert, build_pgque_alerts
from .dead_letters import build_dead_letter_checks
from .health import build_queue_health_checks
from .lag import build_consumer_lag_checks

__all__ = [
    "Alert",
    "build_consumer_lag_checks",
    "build_dead_letter_checks",
    "build_pgque_alerts",
    "build_queue_health_checks",
]
