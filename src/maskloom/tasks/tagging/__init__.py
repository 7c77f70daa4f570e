"""Tagging the words of sentences: reading, schemes, windows, decoding (BERT paper 4.3)."""
