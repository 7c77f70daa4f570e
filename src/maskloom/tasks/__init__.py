"""A dataset kind: reading, encoding, head, objective, decoding, metric."""
