"""Composition roots: the only code that knows every concrete class."""
