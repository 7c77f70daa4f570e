"""Blocks that models are composed of; they know nothing of text or files."""
