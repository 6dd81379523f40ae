"""The sensors: they request runs for batches, make ticks and observe queues."""
