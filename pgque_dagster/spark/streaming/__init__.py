"""Reads a queue as a stream: ticks are the offsets, and a consumer keeps the position."""
