"""Run rows of the soak and write their table: `python -m tools.soak [--rows R1,R3] [--minutes N] [--seed 0]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.soak.rows import all_rows
from tools.soak.runner import ROOT, run_rows, write_results


def main() -> int:
    """Return 0 when every row that ran passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="ids with commas between them; without it, all")
    parser.add_argument("--minutes", type=float, help="share this time among the rows; without it, each row is full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "maskloom-soak")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where the table is written")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    options = parser.parse_args()
    rows = all_rows()
    if options.list:
        print("\n".join(f"{row.id}: {row.test} ({row.full})" for row in rows))
        return 0
    if options.rows:
        asked = options.rows.split(",")
        unknown = sorted(set(asked) - {row.id for row in rows})
        if unknown:
            parser.error(f"no row {', '.join(unknown)}; rows: {', '.join(row.id for row in rows)}")
        rows = [row for row in rows if row.id in asked]
    records = run_rows(rows, work=options.work.resolve(), seed=options.seed, minutes=options.minutes)
    write_results(records, options.results)
    return 0 if all(record["verdict"].startswith("passed") for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
