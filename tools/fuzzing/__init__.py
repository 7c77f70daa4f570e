"""Malformed inputs by the thousand: good files, what is done to them, and a child process that reads the result."""
