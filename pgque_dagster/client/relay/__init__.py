"""Relays: they move table changes from the WAL into a queue, as if writers had sent them."""
