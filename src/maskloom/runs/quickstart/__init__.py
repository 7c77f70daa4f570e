"""The quick start: from documentation on this machine to a BERT of one's own, measured and used, in minutes."""

from __future__ import annotations

from maskloom.runs.quickstart.journey import quickstart, summary_lines

__all__ = ["quickstart", "summary_lines"]
