"""Kernels made for the processor at hand."""
