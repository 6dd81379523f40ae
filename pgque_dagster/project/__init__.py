"""A Dagster project's declarations about its queues, for assets, sensors, checks and jobs."""
