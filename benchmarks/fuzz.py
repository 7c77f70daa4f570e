"""Thousands of malformed inputs, each read in a child process with time and memory limits.

`python benchmarks/fuzz.py --cases 10000 --seed 0 --minutes 30` prints a table and every kind of finding;
`--only 5:d.csv:1234` runs one case again and keeps its file. The exit code is 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.fuzzing.runner import Case, run_cases, table_of


def main() -> int:
    """Run the requested cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="begin at this case of every target")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--only", help="a case by its key, or the beginning of keys such as 5:d.csv:")
    options = parser.parse_args()
    work = Path(tempfile.gettempdir()) / "maskloom-fuzz" / str(options.seed)
    seconds = None if options.minutes is None else 60 * options.minutes
    num_cases = 1 if options.only is not None and options.only.count(":") == 2 else options.cases
    cases: list[Case] = []
    kinds: Counter[str] = Counter()
    running = run_cases(
        work, seed=options.seed, num_cases=num_cases, first=options.first, seconds=seconds, only=options.only
    )
    for case in running:
        cases.append(case)
        if num_cases == 1:
            print(case)
        if not case.passed:
            kind = case.what.split(": ")[0]
            kinds[kind] += 1
            if kinds[kind] <= 3:
                print(f"finding {case.key} ({case.group}): {case.what}", flush=True)
    print(f"seed {options.seed}, {len(cases):,} cases\n\n{table_of(cases)}")
    for kind, count in kinds.most_common():
        print(f"{count} x {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
