"""Kernels for specific CPUs and GPUs."""
