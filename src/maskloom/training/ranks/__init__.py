"""Training of one model by several processes."""
