"""How a stream reads: ticks are its offsets, and a consumer holds its place."""
