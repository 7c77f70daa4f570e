"""A page about one run, or about several side by side."""
