"""Relays: changes of tables go from the WAL into a queue, as if writers had sent them."""
