"""Thousands of malformed inputs: good files, mutations of them, and a child process that reads the result."""
