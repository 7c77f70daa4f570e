"""Checkpoints: what is written, by which process and when."""
