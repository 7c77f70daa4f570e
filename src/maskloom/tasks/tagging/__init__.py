"""Tagging the words of sentences: reading, schemes, windows, decoding (BERT paper 5.3)."""
