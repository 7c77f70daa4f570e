"""Sequence-to-sequence tasks: translation, summaries and any other text generated from a text."""
