"""The process that reads malformed files, one after the other, and reports the outcome of each.

`python -m tools.fuzzing.child FOLDER SEED` reads lines `TARGET FIRST LAST` and answers each case with two lines of
JSON: one before it reads the file, one after. A case that hangs, crashes or is killed produces only the first line.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from tools.fuzzing.targets import Surroundings, Target, all_targets, prepared

# The address space that one case may add to the process's size after its imports.
_ADDRESS_SPACE = 3 << 30


def case_draw(seed: int, target: Target, number: int, index: int) -> random.Random:
    """Return the random generator of a case, which depends only on the arguments."""
    return random.Random(repr((seed, number, target.name, index)))


def outcome_of(target: Target, path: Path) -> dict[str, Any]:
    """Read the file; return whether it was accepted, refused, or is a finding."""
    from maskloom.errors import ConfigError, DataError

    try:
        target.read(path)
    except (ConfigError, DataError) as error:
        message = str(error)
        named = any(
            part in message
            for part in (path.name, str(path.parent), "line ", "input", "--set", "--grid", "key", " = ", "[model]")
        )
        if not named:
            return {"outcome": "finding", "what": f"message without a place: {message[:200]}"}
        if len(message) > 20_000:
            return {"outcome": "finding", "what": f"message of {len(message)} characters: {message[:100]}"}
        return {"outcome": "refused", "what": message[:200]}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        places = traceback.extract_tb(error.__traceback__)
        ours = next((place for place in reversed(places) if "maskloom" in place.filename), places[-1])
        where = f"{Path(ours.filename).name}:{ours.lineno} {ours.name}"
        return {"outcome": "finding", "what": f"{type(error).__name__} at {where}: {str(error)[:160]}"}
    return {"outcome": "accepted"}


def status_bytes(name: str) -> int:
    """Return a size in bytes from this process's status, such as VmRSS."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Reset the peak of resident memory, if the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Answer requests until standard input ends."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    import torch

    import maskloom.inference  # noqa: F401  what readers import counts before limits are set

    torch.set_num_threads(1)
    surroundings = Surroundings(folder / "good")
    targets = all_targets(surroundings)
    for target in targets:
        target.make(random.Random(0))  # creates the good folders
    limit = status_bytes("VmSize") + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print("{}", flush=True)
    for line in sys.stdin:
        number, first, last = map(int, line.split())
        target = targets[number]
        for index in range(first, last):
            content = target.make(case_draw(seed, target, number, index))
            path = prepared(target, surroundings, folder / "case", content)
            print(json.dumps({"index": index, "bytes": len(content)}), flush=True)
            forget_peak()
            before = status_bytes("VmRSS")
            found = outcome_of(target, path)
            print(json.dumps({**found, "index": index, "grown": status_bytes("VmHWM") - before}), flush=True)
        print("{}", flush=True)


if __name__ == "__main__":
    main()
