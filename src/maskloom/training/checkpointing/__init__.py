"""Checkpoints: what is written, by whom and when."""
