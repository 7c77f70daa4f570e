"""Reading and writing published model formats."""
