"""What can stop a step: signals, lack of memory, non-finite numbers."""
