"""One training loop for everything: optimiser, schedule, checkpoints, logging."""
