"""Faults that tests and soak trials inject into runs."""
