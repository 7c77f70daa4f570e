"""Kinds of task: reading, encoding, heads, objectives, decoding and metrics."""
