"""Asset checks and alerts on queues: dead letters, consumer lag and health."""
