"""Architectures composed of layers, one file each, with their heads, outputs and the table of all of them."""
