"""Text in, typed predictions out."""
