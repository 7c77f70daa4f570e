"""Other programs' formats, one file each."""
