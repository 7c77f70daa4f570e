"""Targets from sources: translation, summaries and any other text from a text."""
