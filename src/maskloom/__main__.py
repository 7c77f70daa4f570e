"""Run as `python -m maskloom`."""

from maskloom.cli import main

main()
