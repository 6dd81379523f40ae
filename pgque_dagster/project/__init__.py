"""What a Dagster project declares of its queues, for its assets, sensors, checks and jobs."""
