"""Interfaces to the machine: files, locks, processes, memory, devices."""
