"""Blocks with two or more users: attention, embeddings, feed-forward, transformer."""
