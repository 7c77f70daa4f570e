"""One loop for everything: optimiser, schedule, checkpoint, logging."""
