"""What stops a step: signals, memory, numbers."""
