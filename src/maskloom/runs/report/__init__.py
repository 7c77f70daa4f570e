"""A page about one run, or several beside each other."""
