"""Objectives: loss sums and counts from a model and a batch."""
