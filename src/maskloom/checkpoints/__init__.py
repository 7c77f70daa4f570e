"""Reading and writing published formats; other programs' names appear only in this package."""
