"""A model and a batch give loss sums and counts."""
