"""A page about one run, or several beside each other."""

from maskloom.runs.report.page import report

__all__ = ["report"]
