"""The steps of an asset for a batch: claim, compute, store, check, ack."""
