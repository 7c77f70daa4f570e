"""The soak: every promise of survival, tested many times with real processes, as rows of one table."""
