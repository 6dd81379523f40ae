"""The sink of PostgreSQL tables, and the ledger of what was applied."""
