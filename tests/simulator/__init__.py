"""A simulator of the engine: many sessions of a real PostgreSQL, in an order that a seed fixes."""
