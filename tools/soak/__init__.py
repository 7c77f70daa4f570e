"""The soak: every promise of surviving, tried many times by real processes, as rows of one table."""
