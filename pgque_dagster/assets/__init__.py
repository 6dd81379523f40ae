"""What an asset does with a batch: claim, compute, store, check, ack."""
